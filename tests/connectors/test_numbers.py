"""Numbers that are written in odd ways: each way of reading takes them for the same number, or refuses them."""

import json
from decimal import Decimal

import pyarrow as pa
import pytest

from statefx.connectors.files.readers import Range, read
from statefx.connectors.files.sink import _partitions
from statefx.connectors.kafka.rows import Json
from statefx.connectors.sql.columns import reader
from statefx.errors import InputError
from statefx.operators.fitting import MISFITS, fitted_column
from statefx.operators.json_values import key_writer
from statefx.operators.schema import parse_schema
from statefx.plan.hashing import hashes_of
from statefx.state.encoding.keys import encode_key

REFUSED = "refused"
TYPES = ("tinyint", "int", "long", "float", "double", "decimal(10,2)")
INF = float("inf")

# What is read in CSV, by kind of type: of ints, of floats, of decimals.
ODD = {
    "1": (1, 1.0, Decimal("1.00")),
    "-1": (-1, -1.0, Decimal("-1.00")),
    " 1": (1, 1.0, Decimal("1.00")),
    "1.0": (REFUSED, 1.0, Decimal("1.00")),
    "1.5": (REFUSED, 1.5, Decimal("1.50")),
    "1e2": (REFUSED, 100.0, Decimal("100.00")),
    "1E2": (REFUSED, 100.0, Decimal("100.00")),
    "1e400": (REFUSED, REFUSED, REFUSED),
    "-1e400": (REFUSED, REFUSED, REFUSED),
    "1e5000000000": (REFUSED, REFUSED, REFUSED),
    "1e-400": (REFUSED, 0.0, REFUSED),
    "0x1F": (REFUSED, REFUSED, REFUSED),
    "0X1f": (REFUSED, REFUSED, REFUSED),
    "-0x1": (REFUSED, REFUSED, REFUSED),
    "0b1": (REFUSED, REFUSED, REFUSED),
    "1_0": (REFUSED, REFUSED, REFUSED),
    "1'0": (REFUSED, REFUSED, REFUSED),
    "1d": (REFUSED, REFUSED, REFUSED),
    "1e": (REFUSED, REFUSED, REFUSED),
    "--1": (REFUSED, REFUSED, REFUSED),
    "\u0663": (REFUSED, REFUSED, REFUSED),
    "true": (REFUSED, REFUSED, REFUSED),
    "99999999999999999999": (REFUSED, 1e20, REFUSED),
}


def wanted(text, kind):
    ints, floats, decimals = ODD[text]
    if kind.startswith("decimal"):
        return decimals
    if kind not in ("float", "double"):
        return ints
    return floats if kind == "double" or floats == REFUSED else pa.scalar(floats, pa.float32()).as_py()


def of_file(form, content, kind, folder):
    path = folder / "f"
    path.write_bytes(content.encode())
    try:
        found = read(form, parse_schema(f"a {kind}"), True, Range(str(path), 0, len(content.encode())))
        [value] = [value for batch in found for value in batch.column(0).to_pylist()]
    except (InputError, pa.ArrowException):
        return REFUSED
    return value


def of_kafka(text, kind):
    try:
        return Json(f"a {kind}").decode([f'{{"a": {text}}}'.encode()])[0].to_pylist()[0]
    except ValueError:
        return REFUSED


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("text", ODD)
def test_number_in_a_file_is_what_it_says_or_refused(text, kind, tmp_path):
    want = wanted(text, kind)
    assert of_file("csv", f"a\n{text}\n", kind, tmp_path) == want
    assert of_file("json", f'{{"a": {text}}}\n', kind, tmp_path) == want
    assert of_kafka(text, kind) == want
    if kind.startswith("decimal"):
        assert of_file("json", json.dumps({"a": text}) + "\n", kind, tmp_path) == want
        assert of_file("json", json.dumps({"A": text}) + "\n", kind, tmp_path) == want, "a name in another case"
        assert of_kafka(json.dumps(text), kind) == want
        assert of_kafka(json.dumps(text, ensure_ascii=True).replace("_", "\\u005f"), kind) == want
        assert of_database(text, kind) == want


def of_database(text, kind):
    """Return what SqlPartitionedSpout makes of a text in a column of decimals."""
    type_of = parse_schema(f"a {kind}").field(0).type
    try:
        return fitted_column(pa.array([reader(type_of)(text)]), type_of).to_pylist()[0]
    except (ValueError, ArithmeticError, *MISFITS):
        return REFUSED


@pytest.mark.parametrize(("text", "want"), [("inf", INF), ("-Infinity", -INF), ("INF", INF)])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_infinity_in_csv_is_one_that_is_written_so(text, want, kind, tmp_path):
    assert of_file("csv", f"a\n{text}\n", kind, tmp_path) == want
    path = tmp_path / "both"
    path.write_text(f"a,b\n{text},1\n\n2,0x\n")
    found = read("csv", parse_schema(f"a {kind}, b string"), True, Range(str(path), 0, path.stat().st_size))
    assert [row for batch in found for row in batch.to_pylist()] == [{"a": want, "b": "1"}, {"a": 2.0, "b": "0x"}]


def test_float_too_large_is_refused_as_emit_refuses_it():
    with pytest.raises(MISFITS):
        fitted_column(pa.array([1e39]), pa.float32())


@pytest.mark.parametrize("kind", ["float", "double"])
def test_minus_zero_is_the_key_zero_wherever_a_key_is_made(kind):
    type_of = parse_schema(f"a {kind}").field(0).type
    assert encode_key(-0.0) == encode_key(0.0)
    for types, row in [([type_of], ()), ([type_of, pa.string()], ("a",)), ([type_of, type_of], (None,))]:
        key_of = key_writer(types)
        assert key_of((-0.0, *row)) == key_of((0.0, *row))
    batch = pa.record_batch({"a": pa.array([0.0, -0.0, None, float("nan")], type_of), "n": [1, 2, 3, 4]})
    folders = {folder: rows["n"].to_pylist() for folder, rows in _partitions(batch, ["a"])}
    assert folders == {"a=0.0/": [1, 2], "a=__HIVE_DEFAULT_PARTITION__/": [3], "a=NaN/": [4]}
    hashes = hashes_of([pa.array([0.0, -0.0], type_of)])
    assert hashes[0] == hashes[1]


MARK = "\ufeff"


@pytest.mark.parametrize("most", [None, 12])
@pytest.mark.parametrize(
    ("form", "header", "lines"),
    [
        ("text", False, ["to be", f"{MARK}or not", "", "to be"]),
        ("csv", False, ["to be", f"{MARK}or not", "to be"]),
        ("csv", True, ["value", f"{MARK}or not", "to be", f"{MARK}x"]),
        ("json", False, ['{"value":"a"}', '{"value":"\ufeffb"}']),
    ],
)
def test_byte_order_mark_is_taken_away_at_the_beginning_of_a_file_alone(form, header, lines, most, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(MARK.encode() + "".join(line + "\n" for line in lines).encode())
    want = [json.loads(line)["value"] if form == "json" else line for line in lines][header:]
    found, start, size = [], 0, path.stat().st_size
    while start < size:
        stop = size if most is None else path.read_bytes().index(b"\n", start) + 1
        batches = read(form, parse_schema("value string"), header, Range(str(path), start, stop))
        found += [value for batch in batches for value in batch.column(0).to_pylist()]
        start = stop
    assert found == want


def test_text_of_a_mark_alone_has_no_line(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(MARK.encode())
    assert not list(read("text", parse_schema("value string"), False, Range(str(path), 0, 3)))
