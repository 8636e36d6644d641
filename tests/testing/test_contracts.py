"""A contract holds as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from statefx.testing.codec_contract import CodecContract
from statefx.testing.provider_contract import StateProviderContract
from statefx.testing.sink_contract import SinkContract
from statefx.testing.spout_contract import SpoutContract


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
