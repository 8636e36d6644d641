"""Every ``python`` block of README.md and docs/ is run, page by page.

The blocks of a page are one program, run in order, with nothing of another page's but the session of Spark. Lines keep
their numbers, so that a traceback points into the page. Two HTML comments, which readers do not see, steer it::

    <!-- not run: needs a Kafka broker -->      the next block is not run; a reason is required
    <!-- run:                                   lines that are run at this place, such as making an input folder
    ...
    -->
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>.*)$")
NOT_RUN = re.compile(r"<!-- not run: \S.* -->$")


def program(page: str) -> str:
    """The page as a Python program: its blocks at their own lines, everything else blank."""
    out: list[str] = []
    lines = iter(enumerate(page.splitlines(), 1))
    skip_next = False
    for number, line in lines:
        out.append("")
        if line.strip() == "<!-- run:":
            out += _until(lines, "-->", number)
        elif fence := FENCE.match(line):
            language = fence["info"].strip()
            block = _until(lines, fence["ticks"], number)
            if language.lstrip("{").startswith("py") or language.startswith("{code"):
                assert language == "python", f"line {number}: write ```python, so that the block is run"
                assert not fence["indent"], f"line {number}: an indented block can't be run; move it to the margin"
            run = language == "python" and not skip_next
            out += block if run else [""] * len(block)
            skip_next = False
        elif line.strip():
            assert not skip_next, f"line {number}: `not run` must stand right before its block"
            skip_next = line.startswith("<!-- not run")
            assert not skip_next or NOT_RUN.match(line), f"line {number}: say why: <!-- not run: reason -->"
    assert not skip_next, "`not run` at the end of the page"
    return "\n".join(out).rstrip() + "\n"


def _until(lines: "enumerate[str]", end: str, start: int) -> list[str]:
    block: list[str] = []
    for _, line in lines:
        if line.strip() == end:
            return [*block, ""]
        block.append(line)
    raise AssertionError(f"line {start}: the block has no end")


def _runnable() -> list[Path]:
    return [page for page in PAGES if program(page.read_text(encoding="utf-8")).strip()]


@pytest.mark.slow
@pytest.mark.parametrize("page", _runnable(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(programs, page, tmp_path):
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program(page.read_text(encoding="utf-8")), encoding="utf-8")
    done = programs.run(script)
    assert done["failure"] is None, (
        f"{page.name}:\n{done['stdout'][-2000:]}\n{done['stderr'][-4000:]}\n{done['failure']}"
    )


def test_blocks_become_one_program_with_the_lines_of_the_page():
    page = "# T\n```python\na = 1\n```\ntext\n```console\n$ ls\n```\n<!-- run:\nb = 2\n-->\n```python\nc = a + b\n```\n"
    assert program(page).splitlines() == ["", "", "a = 1", "", "", "", "", "", "", "b = 2", "", "", "c = a + b"]


def test_a_block_marked_not_run_is_left_out_and_only_that_one():
    page = "<!-- not run: needs a broker -->\n\n```python\na = 1\n```\n```python\nb = 2\n```\n"
    assert program(page).split() == ["b", "=", "2"]


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("```py\na\n```\n", "write ```python"),
        ("```{code-block} python\na\n```\n", "write ```python"),
        ("- item\n  ```python\n  a\n  ```\n", "margin"),
        ("<!-- not run -->\n```python\na\n```\n", "say why"),
        ("<!-- not run: reason -->\ntext\n```python\na\n```\n", "right before"),
        ("```python\na\n", "no end"),
    ],
)
def test_a_block_that_would_silently_not_run_is_refused(page, message):
    with pytest.raises(AssertionError, match=message):
        program(page)
