"""One word for one thing: pages, errors and log lines use the project's terms, not those that they replaced."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_claims import CODE, PAGES, ROOT, SOURCES, prose

DROPPED = {
    "attempt": r"(?:another|one|each|first|next|last|every|eighth|a) (?:try|tries)(?! to)",
    "call, send, report": r"told(?! apart)|notified|hears?(?= of|s)",
    "check": r"judge[sd]?|judging|verdicts?",
    "committed": r"settled|committed for (?:all|everybody)",
    "driver's instruction": r"orders? (?:to|of|for) (?:the )?(?:tasks?|chains?|driver|segment)|driver's orders?",
    "fence": r"ke(?:ep|eps|pt) (?:it |them )?out",
    "fix": r"mend(?:s|ed|ing)?",
    "in flight": r"under way|underway",
    "participant": r"everybody|part(?:y|ies) to",
    "recovered": r"found (?:under way|at (?:the )?start)",
    "resident": r"living|long-lived",
    "retry, restart": r"anew|once more|over again",
    "rolling back": r"doomed",
    "skip, set aside": r"left out|leaves out|pass(?:es|ed)? over|put aside",
    "stage": r"laid aside",
    "task chain": r"followers?",
}
"""Words that each term replaced, as far as a script can tell; text in code font is not searched."""

WORDS = re.compile(rf"\b(?:{'|'.join(DROPPED.values())})\b", re.IGNORECASE)
LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def dropped(text: str) -> list[str]:
    return [" ".join(text[max(0, word.start() - 40) : word.end() + 20].split()) for word in WORDS.finditer(text)]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_uses_the_terms(page):
    assert dropped(re.sub(r"<!--.*?-->", "", CODE.sub("", prose(page)), flags=re.DOTALL)) == []


def messages(path: Path) -> Iterator[str]:
    """The texts of a module that are raised or logged."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        said = node.exc if isinstance(node, ast.Raise) else node if isinstance(node, ast.Call) and logs(node) else None
        parts = [part.value for part in ast.walk(said) if isinstance(part, ast.Constant)] if said else []
        yield from (part for part in parts if isinstance(part, str))


def logs(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in LOGGED


@pytest.mark.slow
def test_errors_and_log_lines_use_the_terms():
    texts = [(path, text) for path in SOURCES for text in messages(path)]
    assert len(texts) > 1000
    assert [f"{path.relative_to(ROOT)}: {text}" for path, part in texts for text in dropped(part)] == []


@pytest.mark.parametrize("text", ["it is told again", "an attempt is judged", "two transactions under way", "anew"])
def test_a_dropped_word_is_found(text):
    assert dropped(text)
