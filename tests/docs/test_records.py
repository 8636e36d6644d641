"""The records that `docs/on-disk.md` shows are those that the log writes."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from statefx.protocol.jsonform import from_json, to_json
from statefx.protocol.records import Record

PAGE = (Path(__file__).parents[2] / "docs" / "on-disk.md").read_text(encoding="utf-8")
(BLOCK,) = re.findall(r"<!-- records -->\n```json\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = [json.loads(line) for line in BLOCK.splitlines()]


@pytest.mark.parametrize("body", EXAMPLES, ids=lambda body: body["kind"])
def test_a_record_that_is_shown_is_read_and_written_as_shown(body):
    assert to_json(from_json(Record, body)) == body


def test_there_is_one_of_each_kind_and_the_table_tells_of_it():
    kinds = {record.kind for record in get_args(Record)}
    assert {body["kind"] for body in EXAMPLES} == kinds
    assert all(f"`{kind}`" in PAGE for kind in kinds)
