"""The size and names of modules. Who may import whom is in pyproject.toml (import-linter)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
MODULE_LINES = 400
FUNCTION_LINES = 70
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}


def _modules() -> list[Path]:
    modules = sorted(path for folder in ("statefx", "providers") for path in (ROOT / folder).rglob("*.py"))
    assert modules, f"no modules found under {ROOT}"
    return modules


def _long_functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines"


def test_a_module_is_at_most_400_lines() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in _modules()}
    assert [f"{path.relative_to(ROOT)}: {n} lines" for path, n in lines.items() if n > MODULE_LINES] == []


def test_a_function_with_its_docstring_is_at_most_70_lines() -> None:
    assert [found for path in _modules() for found in _long_functions(path)] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [str(path.relative_to(ROOT)) for path in _modules() if path.stem.strip("_") in EMPTY_NAMES] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also not for types alone: who reads one of them has to read all."""
    graph = grimp.build_graph("statefx")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 100
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_statefx_testing_is_imported_without_the_test_libraries() -> None:
    """A user's job that imports TopologyTester must not need the extra ``testing``."""
    hidden = "import sys; sys.modules.update(pytest=None, hypothesis=None); import statefx.testing"
    run = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
