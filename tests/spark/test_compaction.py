"""A start finds every list of files that Spark looks for, whatever the interval was at which lists were compacted."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from statefx import submit
from statefx.coordinator.location import Folders
from statefx.errors import InputError
from statefx.protocol.records import Committed, RolledBack
from statefx.spark import source_notes
from statefx.spark.compaction import SETTING, missing_compacted, united
from statefx.spark.source_notes import SourceFiles
from tests.spark.checkpoints import Checkpoint, offsets
from tests.spark.running import BOUND_SECS, feed, kept, lines_of
from tests.spark.test_spark_state import NOW, keeping


class MissingError(Exception):
    """What Spark's query ends with: "49.compact doesn't exist (latestId: 51, compactInterval: 10)"."""


class SparksLog:
    """Spark's FileStreamSourceLog, as it reads and writes a folder: one entry a list, which is its number.

    Parameters
    ----------
    folder : Path
    setting : int
        The session's.
    """

    def __init__(self, folder: Path, setting: int) -> None:
        self.folder = folder
        self.interval = setting
        folder.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in folder.iterdir() if path.name[0] != "."]
        compacted = sorted(int(name.split(".")[0]) for name in names if name.endswith(".compact"))
        if len(compacted) > 1:
            self.interval = compacted[-1] - compacted[-2]
        elif compacted:
            size = compacted[0] + 1
            proper = [each for each in range(setting, size // 2 + 1) if size % each == 0]
            self.interval = proper[0] if setting < size // 2 else size
        self.latest = max((int(name.split(".")[0]) for name in names), default=-1)

    def path(self, number: int) -> Path:
        return self.folder / (f"{number}.compact" if (number + 1) % self.interval == 0 else str(number))

    def read(self, number: int) -> list[int]:
        if not self.path(number).exists():
            raise MissingError(f"{self.path(number)}, latest {self.latest}, interval {self.interval}")
        return [json.loads(line)["batchId"] for line in self.path(number).read_text().splitlines()[1:]]

    def files(self) -> list[int]:
        """What Spark does with each start."""
        first = max(0, (self.latest + 1) // self.interval * self.interval - 1)
        return [entry for number in range(first, self.latest + 1) for entry in self.read(number)]

    def of_batch(self, number: int) -> list[int]:
        """What Spark reads to run a batch again: its own list, and the whole if that has gone."""
        found = self.read(number) if self.path(number).exists() else self.files()
        return [entry for entry in found if entry == number]

    def add(self) -> None:
        number = self.latest + 1
        before = range(max(0, number - self.interval), number) if (number + 1) % self.interval == 0 else ()
        entries = [entry for each in before for entry in self.read(each)]
        path = self.path(number)
        path.write_text("v1" + "".join(f'\n{{"path":"in/{each}","batchId":{each}}}' for each in [*entries, number]))
        self.latest = number


@pytest.fixture
def ck(place: Path) -> Iterator[Checkpoint]:
    found = Checkpoint(place)
    yield found
    found.end()


DEATHS = ("stopped", "planned by Spark", "PREPARING", "COMMITTING", "while it starts")


def live(ck: Checkpoint, setting: int, batches: int, death: str, adopt: str | None = None) -> None:
    """A driver starts, looks at what Spark finds, and runs batches; it dies within the last one, or is stopped."""
    ck.start(setting, adopt)
    log, state = SparksLog(ck.spark / "sources" / "0", setting), ck.log.state
    planned = sum(each.txid for each in state.in_flight) or state.committed + (state.planned is not None)
    assert log.files() == list(range(planned)), "what was read comes neither again nor never"
    for batch in range(max(0, state.committed - 1), planned):  # Spark may run them again
        assert log.of_batch(batch) == [batch]
    if death == "while it starts":
        return
    for entry in state.in_flight:
        ck.log.append(Committed(entry.txid) if state.committing else RolledBack(entry.txid, entry.attempt, "found"))
    first = ck.log.state.committed
    for batch in range(first, first + batches):
        ends = death if batch == first + batches - 1 else ""
        if batch > log.latest:
            log.add()
        ck.write(f"offsets/{batch}", offsets(batch))
        if ends == "planned by Spark":
            return
        attempt = ck.log.state.next_attempt(batch + 1)
        ck.begin(batch, attempt)
        if ends == "PREPARING":
            return
        ck.decide(batch, attempt)
        if ends == "COMMITTING":
            return
        ck.log.append(Committed(batch + 1))
        ck.note(batch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_every_start_finds_what_it_looks_for(ck: Checkpoint, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts and crashes at random, one setting or several, lists in the log or, as many large ones, beside it."""
    chosen = random.Random(seed)
    if seed >= 4:
        monkeypatch.setattr(source_notes, "INLINE_BYTES_MAX", 500)
    settings = [chosen.choice([1, 2, 3, 4, 5, 10])] if seed % 2 else [1, 2, 3, 4, 7, 10]
    for _ in range(25):
        live(ck, chosen.choice(settings), chosen.randint(1, 14), chosen.choice(DEATHS))
    live(ck, settings[0], 0, "stopped")
    assert ck.log.state.committed > 60
    assert len(list((ck.spark / "sources" / "0").iterdir())) < 80, "old lists are given up"


@pytest.mark.slow
@pytest.mark.parametrize("setting", [1, 2, 3, 10])
def test_one_setting_and_starts_after_every_number_of_batches(ck: Checkpoint, setting: int) -> None:
    """Ten, and thirteen batches a start: the fifth one looked for 49.compact, which nobody had written."""
    for batches in (13, 13, 13, 13, *range(1, 9)):
        live(ck, setting, batches, "stopped")
    live(ck, setting, 0, "stopped")


def test_a_list_is_missing_or_of_an_unknown_format() -> None:
    """Then nothing is made up: Spark says what it lacks."""
    assert united(["v1\na", "v1", "v1\nb\nc"]) == "v1\na\nb\nc"
    assert united(["v1"]) == "v1"
    assert united(["v1\na", "v2\nb"]) is None
    assert united(["v1\na", None]) is None
    assert united([]) is None
    assert list(missing_compacted({9, 12}, 13, 10)) == [], "no history of Spark's"


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Drivers of the time when nobody looked at the interval; `undo` ends it."""
    monkeypatch.setattr(SourceFiles, "compact", lambda *_: None)
    return monkeypatch


@pytest.mark.slow
@pytest.mark.parametrize("adopt", [None, "move", "fork"])
def test_a_checkpoint_that_lacks_a_compacted_list_goes_on(
    ck: Checkpoint, as_before: pytest.MonkeyPatch, place: Path, adopt: str | None
) -> None:
    for _ in range(4):
        live(ck, 10, 13, "stopped")
    with pytest.raises(MissingError, match=r"49\.compact, latest 51, interval 10"):
        live(ck, 10, 13, "stopped")
    as_before.undo()
    if adopt is not None:
        (place / "other").mkdir()
        ck.location = ck.location.rename(place / "other" / "ck")
        ck.folders = Folders(str(ck.location))
        live(ck, 10, 13, "stopped", adopt)
    for death in ("while it starts", "planned by Spark", "PREPARING", "stopped", "stopped", "stopped"):
        live(ck, 10, 13, death)


@pytest.mark.slow
def test_spark_is_started_again_over_several_compactions(spark, place, as_before):
    """With 3 as the setting, Spark takes 6 for the interval after 5.compact alone, and 3 again after 11.compact."""
    done = 0

    def start(setting, files):
        nonlocal done
        spark.conf.set(SETTING, str(setting))
        feed(place / "in", **{f"{each:03}": [each] for each in range(done, done + files)})
        done += files
        query = submit(keeping(lines_of(spark, place / "in")), spark, place / "ck", trigger=NOW)
        assert query.awaitTermination(BOUND_SECS)

    try:
        start(3, 8)
        start(3, 7)
        with pytest.raises(InputError, match=r"14\.compact does not exist"):
            start(3, 0)
        as_before.undo()
        start(3, 2)
        start(5, 2)
        start(1, 2)
        start(1, 0)
    finally:
        spark.conf.unset(SETTING)
    assert kept(place / "ck", "keep", 1)[0] == [(str(each),) for each in range(done)]
