"""Whatever a field is called: it is an attribute, a keyword and an index, or is refused where it is declared."""

import pickle
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statefx import BasicBolt, TopologyBuilder
from statefx.errors import TopologyError
from statefx.operators.schema import parse_schema, to_ddl
from statefx.operators.tuples import tuple_class
from statefx.testing import TopologyTester, rows

MICRO = "\u00b5m"
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=4).filter(str.isidentifier)


def quoted(name):
    return "`" + name.replace("`", "``") + "`"


@pytest.mark.slow
@given(name=NAMES)
@example(name=MICRO)
@example(name="e\u0301")
@example(name="\ufb01")
def test_field_of_any_name_is_attribute_keyword_and_index(name):
    tup = tuple_class([name])(7)
    assert tup[name] == tup[0] == 7
    assert tup._names == (name,)
    assert pickle.loads(pickle.dumps(tup))[name] == 7
    source = unicodedata.normalize("NFKC", name)
    if not source.startswith("_") and source not in dir(tuple):
        try:
            found = eval(f"lambda tup: tup.{name}")
        except SyntaxError:  # a word of Python's
            return
        assert found(tup) == 7


@pytest.mark.slow
@given(names=st.lists(NAMES, min_size=2, max_size=4, unique=True))
@example(names=["e\u0301", "\u00e9"])
def test_names_that_python_takes_for_one_are_refused(names):
    ddl = ", ".join(f"{quoted(name)} int" for name in names)
    if len({unicodedata.normalize("NFKC", name) for name in names}) < len(names):
        with pytest.raises(TopologyError, match="are one name for Python"):
            parse_schema(ddl)
    else:
        schema = parse_schema(ddl)
        assert schema.names == names
        assert parse_schema(to_ddl(schema)) == schema


class Keyword(BasicBolt):
    outputFields = f"{quoted(MICRO)} int, b int"
    execute = eval(f"lambda self, tup, collector: collector.emit({MICRO}=tup.{MICRO}, b=tup[{MICRO!r}])")


class Original(BasicBolt):
    outputFields = f"{quoted(MICRO)} int, b int"

    def execute(self, tup, collector):
        collector.emit(**{MICRO: tup[0], "b": 1})


@pytest.mark.parametrize(("bolt", "found"), [(Keyword(), (1, 1)), (Original(), (1, 1))])
def test_keyword_of_emit_is_the_field_as_typed_and_as_python_reads_it(bolt, found, tmp_path):
    builder = TopologyBuilder("names")
    builder.setStream("s", rows(f"{quoted(MICRO)} int"))
    builder.setBolt("b", bolt).shuffleGrouping("s")
    with TopologyTester(builder.createTopology(), tmp_path) as tester:
        tester.send({"s": [(1,)]})
        assert tester.emitted("b") == [found]
