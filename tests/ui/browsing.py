"""A real Chromium for tests of the page."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium without a window; tests are skipped where there is none, and none may be installed.

    Of one module: while it is open, the main thread has a running event loop, which others may not expect.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    found = subprocess.run(["tools/chromium.sh"], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    if found.returncode:
        pytest.skip(found.stderr.strip().splitlines()[-1])
    with sync_api.sync_playwright() as playwright:
        # Whoever is root, as in a container, has no sandbox. It shows the test's own page alone.
        launched = playwright.chromium.launch(executable_path=found.stdout.strip(), args=["--no-sandbox"])
        yield launched
        launched.close()


@contextmanager
def opened_tab(browser: Any) -> Iterator[Any]:
    """Open a tab; an error of a script in it, or a breach of the page's policy, fails whoever closes it."""
    errors: list[str] = []
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, reduced_motion="reduce")
    context.set_default_timeout(15_000)
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "Content Security" in message.text else None)
    yield page
    context.close()
    assert errors == []


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    with opened_tab(browser) as page:
        yield page
