"""Settings, names, commands and files that pages name are there, and settings have the defaults that pages say."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import statefx
import statefx.errors
import statefx_redis
from statefx.command import _cli
from statefx.config import SETTINGS, WITHOUT_EFFECT
from statefx.spark.session import RECOMMENDED
from tests.test_surface import EXPORTS

ROOT = Path(__file__).parents[2]
TOP = [ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY")]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted(path for folder in ("statefx", "providers") for path in (ROOT / folder).rglob("*.py"))
FENCED = re.compile(r"^(`{3,})(.*?)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def code(page: Path) -> list[str]:
    return [" ".join(text.split()) for text in CODE.findall(prose(page))]


# ---- settings

KNOWN = {setting.key: setting for setting in SETTINGS}
SETTING = re.compile(r"\btopology(?:\.[a-z]+)+\b(?!\()")
MISSPELT = {"topology.state.providr"}
"""Shown as what is refused."""


@each_page
def test_settings_exist(page):
    named = set(SETTING.findall(page.read_text(encoding="utf-8")))
    assert named - KNOWN.keys() - WITHOUT_EFFECT.keys() - MISSPELT == set()


DEFAULT = re.compile(r"`topology[a-z.]+` \((\d[^\s)]*)|(\d\S*|`[^`.]+`) by default|by default (\d[^\s,.)]*|`[^`.]+`)")


@each_page
def test_defaults_of_settings_are_those_of_the_code(page):
    written = re.sub(r"<!-- table.*?<!-- end -->", "", prose(page), flags=re.DOTALL)
    wrong, keys = [], set[str]()
    for sentence in re.split(r"(?<=[.;])\s|\n\n", written):
        keys = set(SETTING.findall(sentence)) & KNOWN.keys()
        for told in filter(None, (text for found in DEFAULT.findall(sentence) for text in found)):
            for setting in [KNOWN[key] for key in keys if len(keys) == 1]:
                there = f"{json.dumps(setting.default)} {setting.implied}"
                if told.strip("`,;:") not in re.findall(r"[\w.]+", there):
                    wrong.append(f"{setting.key}: {' '.join(sentence.split())}")
    assert wrong == []


# ---- names

MODULES = (*EXPORTS, statefx.errors, statefx_redis)
"""What users import from."""


def public(name: str) -> Any:
    """What users mean by a name; None: nothing of statefx."""
    return next((getattr(module, name) for module in MODULES if hasattr(module, name)), None)


@cache
def identifiers() -> set[str]:
    """All names, and all texts that are names, of the source."""
    found: set[str] = set(dir(builtins))
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                    found.add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.keyword(arg=str(name)) | ast.Constant(value=str(name)):
                    found.add(name)
    return found


OF_OTHERS = {
    "Spark": "groupBy withWatermark dropDuplicates dropDuplicatesWithinWatermark registerTimer maxFilesPerTrigger "
    "maxOffsetsPerTrigger startingOffsets startingTimestamp failOnDataLoss subscribePattern "
    "cleanSource "
    "includeHeaders rand txnAppId txnVersion PythonWorkerFactory TaskSetManager TaskKilled ErrorNotifier "
    "StreamingShuffleWriter StreamingQueryListener",
    "Storm": "BaseBasicBolt BaseBatchBolt BaseStatefulBolt CombinerAggregator",
    "Flink": "TumblingEventTimeWindows allowedLateness sideOutputLateData intervalJoin processBroadcastElement "
    "TimerService",
    "Kafka": "Describe DescribeConfigs Ongoing CurrentTransactionStartOffset",
    "Kubernetes": "restartPolicy Always ReadWriteMany",
    "HTTP": "Authorization Host",
    "psycopg": "AsyncConnectionPool",
    "other": "refreshNonBlocking ClosedChannelException Errno Broken Wrong",
}
"""Names that pages have in code font and that are no names of statefx; those of the pages for users of others apart."""

NAME = re.compile(r"(?<![\w.\"'/-])([a-z]+[A-Z]\w*|[A-Z][a-z]\w+|[a-z]\w*(?=\())(?![\w\"'/-])")


@cache
def own_names(page: Path) -> set[str]:
    """What a page's programs define and use."""
    return {
        name for _, _, block in FENCED.findall(page.read_text(encoding="utf-8")) for name in re.findall(r"\w+", block)
    }


@pytest.mark.slow
def test_names_in_code_font_are_names_of_the_source():
    known = identifiers() | {name for names in OF_OTHERS.values() for name in names.split()}
    unknown = [
        f"{page.name}: {name} in `{text}`"
        for page in PAGES
        if not page.name.startswith("from-")
        for text in code(page)
        for name in NAME.findall(text)
        if name not in known and name not in own_names(page)
    ]
    assert unknown == []


@pytest.mark.slow
def test_no_name_is_taken_for_one_of_others_without_need():
    named = {name for page in PAGES for text in code(page) for name in NAME.findall(text)}
    listed = {name for names in OF_OTHERS.values() for name in names.split()}
    assert listed - named == set(), "no page has it any more: take it from the list"
    assert listed & identifiers() == set()


@each_page
def test_dotted_names_of_statefx_resolve(page):
    names = {name for text in code(page) for name in re.findall(r"(?<![\w/.-])statefx(?:\.[A-Za-z]\w*)+", text)}
    assert {name for name in names - NO_NAMES if not resolves(name)} == set()


NO_NAMES = {"statefx.state_providers", "statefx.kafka", "statefx.worker", "statefx.worker.shop", "statefx.totals"}
"""A group of entry points, loggers, and a consumer group."""


def resolves(name: str) -> bool:
    parts = name.split(".")
    for at in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:at]))
        except ModuleNotFoundError:
            continue
        for part in parts[at:]:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
        return True
    return False


OWN_NAME = re.compile(r"(?<![\w/.-])statefx(?:_[a-z]+)?(?:\.[A-Za-z]\w*)+")


@pytest.mark.slow
def test_dotted_names_in_docstrings_and_comments_resolve():
    """A module that is called otherwise by now, or has gone, is not cited."""
    wrong = []
    for path in SOURCES:
        for text in re.findall(r"``?([^`\n]+)``?", path.read_text(encoding="utf-8")):
            names = OWN_NAME.findall(text) if text.startswith("statefx") else []
            wrong += [
                f"{path.relative_to(ROOT)}: {name}" for name in names if name not in NO_NAMES and not resolves(name)
            ]
    assert wrong == []


@each_page
def test_imports_from_statefx_resolve(page):
    """Also those of programs that are not run."""
    blocks = [block for _, language, block in FENCED.findall(page.read_text(encoding="utf-8")) if language == "python"]
    wrong = [
        f"{node.module}.{one.name}"
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0].startswith("statefx")
        for one in node.names
        if not resolves(f"{node.module}.{one.name}")
    ]
    assert wrong == []


PROGRAMS = [*PAGES, *sorted((ROOT / "examples").glob("*.py"))]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_programs_that_submit_build_a_session_without_a_warning(path):
    """`submit` hints at `statefx.session` where settings are missing."""
    text = path.read_text(encoding="utf-8")
    blocks = [text] if path.suffix == ".py" else [block for _, _, block in FENCED.findall(text)]
    local = [block for block in blocks if "submit(" in block and 'SparkSession.builder.master("local' in block]
    has = [block for block in local if "RECOMMENDED" in block or all(key in block for key in RECOMMENDED)]
    assert [block for block in local if block not in has] == []


def calls(page: Path) -> Iterator[tuple[str, ast.Call]]:
    for text in code(page):
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError:
            continue
        yield from ((text, node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def takers(call: ast.Call) -> list[Any]:
    """What a call may be of: a function or class of statefx, or a method of one of its classes."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    classes = [thing for module in MODULES for thing in vars(module).values() if inspect.isclass(thing)]
    found = [public(name), *(getattr(one, name, None) for one in classes if one.__module__.startswith("statefx"))]
    return [thing for thing in found if callable(thing)]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(calls(page))], ids=lambda page: page.stem)
def test_arguments_that_a_page_names_are_taken(page):
    wrong = []
    for text, call in calls(page):
        given = {keyword.arg for keyword in call.keywords if keyword.arg}
        parameters = [inspect.signature(taker).parameters.values() for taker in takers(call)]
        if (
            given
            and parameters
            and not any(
                given <= {each.name for each in one} or any(each.kind is each.VAR_KEYWORD for each in one)
                for one in parameters
            )
        ):
            wrong.append(text)
    assert wrong == []


# ---- commands and files

COMMAND = re.compile(r"(?:\$ |`)statefx ([a-z][a-z-]*)([^`\n]*)")


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    for name, rest in COMMAND.findall(text):
        yield name, re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest)


TEXTS = [*PAGES, *SOURCES]


def test_commands_and_options_exist():
    wrong, count = [], 0
    for path in TEXTS:
        for name, options in commands(path.read_text(encoding="utf-8")):
            command = _cli.commands.get(name)
            count += 1
            there = (
                {option for one in command.params for option in (*one.opts, *one.secondary_opts)} if command else set()
            )
            wrong += [f"{path.name}: {name} {option}" for option in options if option not in there | {"--help"}]
            wrong += [] if command else [f"{path.name}: {name}"]
    assert wrong == []
    assert count > 20


def test_targets_of_make_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {(page.name, name) for page in PAGES for name in re.findall(r"(?:`|\$ )make ([a-z-]+)", page.read_text())}
    assert {(page, name) for page, name in named if name not in targets} == set()


FOLDERS = "statefx|providers|tests|tools|examples|docs"


def test_files_that_pages_name_exist():
    rooms = "|".join(sorted(path.name for path in (ROOT / "statefx").iterdir() if path.is_dir()))
    missing = [
        f"{page.name}: {path}"
        for page in PAGES
        for path in re.findall(rf"`((?:{FOLDERS})/[\w/.-]*\.\w+|(?:{rooms})/[\w/]*\.py)`", prose(page))
        if not any((ROOT / folder / path).exists() for folder in ("", "statefx", "providers"))
    ]
    assert missing == []


# ---- Rooms and rules that pages and code name are there.


ROOMS = {folder.name for folder in (ROOT / "statefx").iterdir() if folder.is_dir()}


def test_every_room_stands_on_its_page():
    rows = set(re.findall(r"^\| `(\w+)/` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE))
    assert rows == {room for room in ROOMS if (ROOT / "statefx" / room / "__init__.py").exists()}


NAMES = ("name", "id", "arg")
"""The fields of nodes in which Python's syntax tree keeps names."""


@pytest.mark.slow
def test_names_are_in_the_modules_where_rooms_has_them():
    """As in ``the `Sink`, `Marker` (`operators/sinks.py`)``: names before the module that has them."""
    text = (ROOT / "docs/internals/rooms.md").read_text() + (ROOT / "ARCHITECTURE.md").read_text()
    placed = re.findall(r"((?:`\w+`(?:, | and | or )?)+) \(`([\w/]+\.py)`", text)
    assert len(placed) > 50
    missing = []
    for names, path in placed:
        module = next(filter(Path.exists, (ROOT / folder / path for folder in ("statefx", "providers", "."))))
        known = {getattr(node, field, None) for node in ast.walk(ast.parse(module.read_text())) for field in NAMES}
        missing += [f"{name} ({path})" for name in re.findall(r"\w+", names) if name not in known]
    assert missing == []


def test_the_table_of_new_things_has_a_test_and_a_page_for_each():
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where a new thing goes\n")[2]
    rows = [row.strip("|").split("|") for row in text.splitlines()[3:] if row.startswith("|")]
    first = {re.sub(r"[\[\]]|\(.*", "", row[0]).strip() for row in rows}
    assert first >= {"spout", "sink", "kind of timer", "offline tool", "metric", "setting"}
    assert [row[0] for row in rows if not re.search("[tT]est|Contract", row[2]) or not row[3].strip()] == []


RULES = r"[Rr]ules? (\d+(?:\.\d+)?(?:(?:, | and | to |, and )\d+(?:\.\d+)?)*)"


@pytest.mark.slow
def test_rules_that_are_cited_exist_and_all_are_cited():
    """A number is all that leads from a line to the reason why it is there."""
    page = (ROOT / "docs/internals/protocol.md").read_text()
    known = {*re.findall(r"^## (\d+)\.", page, re.MULTILINE), *re.findall(r"\*\*(\d+\.\d+)\*\*", page)}
    assert {"1", "13", "1.1"} <= known
    cited = [
        (path.relative_to(ROOT), number)
        for folder in ("statefx", "providers", "tests", "docs/internals")
        for path in sorted((ROOT / folder).rglob("*.*"))
        if path.suffix in (".py", ".md")
        for numbers in re.findall(RULES, re.sub(r"\s*\n\s*(?:# )?", " ", path.read_text()))
        for number in re.findall(r"\d+(?:\.\d+)?", numbers)
    ]
    assert [f"{path}: {number}" for path, number in cited if number not in known] == []
    used = {number for path, number in cited if path.parts[0] != "docs"}
    assert [rule for rule in known if "." in rule and rule not in used] == [], "cite it where its code is, or delete it"
