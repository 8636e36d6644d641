"""The documentation builds without a warning, without the net, and with what its own extra installs."""

import os
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent


OPTIONS = ("-W", "--keep-going", "-q", "-b")
WITHOUT = """
import sys
from sphinx.cmd.build import main
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
sys.exit(main(sys.argv[1:]))
"""


def installed_by(name: str, *extras: str) -> set[str]:
    """The distributions that ``pip install name[extras]`` brings, of those that are installed here."""
    found, left = set(), [(name, ("", *extras))]
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            needed = map(Requirement, distribution(one[0]).requires or ())
            left += [
                (each.name, ("", *sorted(each.extras)))
                for each in needed
                if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in one[1])
            ]
    return {name.lower().replace("_", "-") for name, _ in found}


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["dummy", pytest.param("html", marks=pytest.mark.soak)])
def test_the_documentation_builds_without_a_warning(tmp_path, builder):
    """Whatever pages and docstrings link to is found without writing pages, which takes as long again."""
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(name, reason="the extra docs is not installed")
    there = installed_by("statefx", "docs")
    hidden = [
        module
        for module, owners in packages_distributions().items()
        if there.isdisjoint(owner.lower().replace("_", "-") for owner in owners)
    ]
    assert "sqlalchemy" in hidden
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT, ",".join(hidden), *OPTIONS, builder, ROOT / "docs", tmp_path / "html"],
        env={**os.environ, "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert (tmp_path / "html" / "index.html").exists() == (builder == "html")
