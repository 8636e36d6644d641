"""Copies of what a crash leaves, at every moment of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statefx.storage import FolderStorage
from statefx.testing.codec_contract import CodecContract
from statefx.testing.crashes import crashes
from statefx.testing.provider_contract import StateProviderContract
from statefx.testing.sink_contract import SinkContract
from statefx.testing.spout_contract import SpoutContract
from statefx.testing.steps import DurableSteps, SteppedStorage


def life(root: Path, server: list[str]):
    def run(steps: DurableSteps) -> None:
        storage = SteppedStorage(FolderStorage(root), steps)
        storage.put("state/a", b"1")
        with steps.around("the server"):
            server.append("told")
        storage.delete(["state/a"])

    return run


def left(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in root.rglob("*") if path.is_file()]


def test_each_moment_has_its_files_and_objects_put_back(tmp_path):
    server: list[str] = []
    found = []
    for point in crashes(tmp_path, life(tmp_path, server), server):
        found.append((point.moments[0], point.is_rerun, left(tmp_path), list(server)))
        server.append("by the recovery")
        (tmp_path / "by the recovery").write_text("")
    told = ["told"]
    assert [each[1:] for each in found] == [
        (False, [b""], []),  # it is written, and has no name yet
        (False, [b"1"], []),
        (False, [b"1"], told),
        (False, [], told),
        (True, [b"1"], []),
        (True, [b"1"], told),
        (True, [], told),
    ]
    assert [each[0] for each in found[:4]] == [
        "before write state/a",
        "after write state/a",
        "after the server",
        "after delete a",
    ]


def test_moments_with_nothing_between_them_are_one(tmp_path):
    server: list[str] = []
    points = list(crashes(tmp_path, life(tmp_path, server), server, reruns=False))
    assert points[1].moments == ("after write state/a", "before the server")


def test_a_run_that_depends_on_memory_is_found(tmp_path):
    runs: list[int] = []

    def forgetting(steps: DurableSteps) -> None:
        runs.append(len(runs))
        storage = SteppedStorage(FolderStorage(tmp_path), steps)
        storage.put("state/a", b"1")
        storage.put("state/b" if len(runs) == 1 else "state/c", b"1")

    with pytest.raises(AssertionError, match="other"):
        list(crashes(tmp_path, forgetting))


def test_a_crash_whose_cleaning_up_is_durable_is_found(tmp_path):
    """A killed process cleans nothing up: what a ``finally`` changes is not in the copy."""

    def tidy(steps: DurableSteps) -> None:
        try:
            SteppedStorage(FolderStorage(tmp_path), steps).put("state/a", b"1")
        finally:
            (tmp_path / "tidied").write_text("")

    with pytest.raises(AssertionError, match="leaves other files"):
        list(crashes(tmp_path, tidy))


@pytest.mark.parametrize(("reached", "new"), [((1, 1, 2), [True, False, True]), ((1, 2, 1), [True, True, False])])
def test_an_outcome_is_new_once(tmp_path, reached, new):
    def three(steps: DurableSteps) -> None:
        for name in "abc":
            steps.each_moment(name)
            (tmp_path / name).write_text("")

    points = crashes(tmp_path, three, reruns=False)
    found = []
    for txid, point in zip(reached, points, strict=True):
        for name in "abc":
            (tmp_path / name).unlink(missing_ok=True)
        found.append(point.is_new(txid))
    assert found == new


# ---- A contract holds as a whole.


def override(*names: str) -> dict[str, Any]:
    return {name: lambda self: None for name in names}


@pytest.mark.parametrize(
    ("contract", "names"),
    [
        (StateProviderContract, ["test_commit_again_changes_nothing", "_require", "site"]),
        (CodecContract, ["test_bytes_order_as_the_keys_do"]),
        (SinkContract, ["test_takeover_of_what_is_in_place_doubles_nothing"]),
        (SpoutContract, ["test_rows_that_are_added_come_once", "_drained"]),
    ],
)
def test_no_test_can_be_overridden(contract, names):
    allowed = override("provider", "codec", "make", "more", "staged", "test_something_of_my_own", "_tool", "__doc__")
    mine = type("Mine", (contract,), allowed)
    assert type("Yours", (mine,), allowed)
    for name in names:
        for base in (contract, mine):
            with pytest.raises(TypeError, match=f"overrides {name}:"):
                type("Theirs", (base,), override(name, "provider"))
