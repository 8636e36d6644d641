"""The size and names of modules. Who may import whom is in pyproject.toml (import-linter)."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
MODULE_LINES = 1200
FUNCTION_LINES = 70
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}


def _modules() -> list[Path]:
    modules = sorted(path for folder in ("statefx", "providers") for path in (ROOT / folder).rglob("*.py"))
    assert modules, f"no modules found under {ROOT}"
    return modules


@pytest.fixture(scope="module")
def parsed() -> dict[Path, list[ast.AST]]:
    """All nodes of each module, for as long as these tests run."""
    return {path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in _modules()}


def _long_functions(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines"


def test_a_module_is_at_most_1200_lines():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in _modules()}
    assert [f"{path.relative_to(ROOT)}: {n} lines" for path, n in lines.items() if n > MODULE_LINES] == []


@pytest.mark.slow
def test_a_function_with_its_docstring_is_at_most_70_lines(parsed):
    assert [found for each in parsed.items() for found in _long_functions(*each)] == []


def test_no_module_has_a_name_that_says_nothing():
    assert [str(path.relative_to(ROOT)) for path in _modules() if path.stem.strip("_") in EMPTY_NAMES] == []


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle():
    """Also not for types alone: who reads one of them has to read all."""
    graph = grimp.build_graph("statefx")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 100
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.slow
def test_statefx_testing_is_imported_without_the_test_libraries():
    """A user's job that imports TopologyTester must not need the extra ``testing``."""
    hidden = "import sys; sys.modules.update(pytest=None, hypothesis=None); import statefx.testing"
    run = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr


PRIVATE_OF_SPARK = {
    *("_active_spark_context", "_gateway", "_jc", "_jdf", "_jrdd", "_jsc", "_jsparkSession", "_jvm"),
    *("environment", "org", "pythonExec", "queryExecution"),
}
"""What PySpark keeps private or does not document, and where the JVM's own begins."""


def _private_of_spark(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Attribute(attr=name) if name in PRIVATE_OF_SPARK:
                pass
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] in ("pyspark", "py4j"):
                private = [each.name for each in names if each.name.startswith("_")]
                if not private:
                    continue
                name = ", ".join(private)
            case _:
                continue
        yield f"{path.relative_to(ROOT)}:{node.lineno} {name}"


@pytest.mark.slow
def test_one_module_alone_knows_what_spark_keeps_private(parsed):
    """So a next version of Spark tells in one place what has changed: `tests/spark/test_internals.py`."""
    found = [each for path in parsed.items() for each in _private_of_spark(*path)]
    internals = [each for each in found if each.startswith("statefx/spark/internals.py:")]
    assert len(internals) > 20, "it looks for names that nobody uses any more"
    assert [each for each in found if each not in internals] == []


FILES = {
    *("access", "chmod", "fdopen", "fsync", "link", "listdir", "makedirs", "mkdir", "open", "readlink", "remove"),
    *("removedirs", "rename", "renames", "replace", "rmdir", "scandir", "stat", "symlink", "truncate", "unlink"),
    *("utime", "walk"),
}
"""Functions of `os` that look at files or change them."""

MAY_OPEN_FILES = {
    "statefx/storage/": "the one room that may",
    "statefx/testing/": "no part of what is run",
    "statefx/admin/rewrite.py": "a temporary folder of this machine, for sorted files and caches",
    "statefx/admin/sorted_files.py": "temporary files of this machine, of sorted entries",
    "statefx/log/observation.py": "asks whether a driver's process is there, and whether its folder is",
    "statefx/state/contract/caches.py": "a folder of this machine, for caches",
    "statefx/runtime/outlets.py": "a temporary file of this machine, for what waits to be sent",
    "statefx/runtime/activity.py": "asks Linux how long a thread has waited for a processor",
    **{
        f"statefx/spark/{name}.py": "Spark's own part, in a folder of the driver's machine that is rebuilt from the log"
        for name in ("checkpoint", "source_notes")
    },
    "statefx/spark/query.py": "asks how wide the terminal is",
    "statefx/spark/preflight.py": "asks where Python is",
    "statefx/spark/session.py": "asks where Java is, and which Spark SPARK_HOME has",
    "statefx/spark/tables.py": "asks whether a checkpoint's folder is mounted on an executor",
    **{f"statefx/connectors/files/{name}.py": "the input, which is the user's" for name in ("readers", "spout")},
    "statefx/connectors/kafka/clients.py": "looks whether certificates are there, which librdkafka will read",
    "providers/statefx_rocksdb/": "RocksDB's directories, on the executor's disk",
}


def _opens_files(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield where a module uses what opens, lists, moves or deletes files."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="open")):
                found = "open"
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in FILES:
                found = f"os.{name}"
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="os"), attr="path"), attr=name) if name in (
                "exists", "isdir", "isfile", "samefile", "getsize", "getmtime",
            ):  # fmt: skip
                found = f"os.path.{name}"
            case ast.Import(names=names) if {"shutil", "pathlib", "glob", "tempfile"} & {each.name for each in names}:
                found = ", ".join(each.name for each in names)
            case ast.ImportFrom(module="os" | "shutil" | "pathlib" | "glob" | "tempfile" | "io" as name):
                found = name
            case _:
                continue
        yield f"{path.relative_to(ROOT)}:{node.lineno} {found}"


@pytest.mark.slow
def test_only_storage_opens_files_of_a_checkpoint(parsed):
    """Where it is not a folder, nothing else can."""
    found = [each for path in parsed.items() for each in _opens_files(*path)]
    assert [each for each in found if not each.startswith(tuple(MAY_OPEN_FILES))] == []
    for prefix in MAY_OPEN_FILES:
        assert any(each.startswith(prefix) for each in found), f"{prefix} opens no file any more: take it from the list"
