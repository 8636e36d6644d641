"""`tools/venv.sh` on a project that needs a source package, as this one needs pyspark, and without any network.

pip is given a folder of wheels made of what is installed here: what builds packages, in the versions that do.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
BUILDERS = ("hatchling", "editables", "setuptools")
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "project"
version = "1"
dependencies = ["old-style"]

[project.optional-dependencies]
more = []
"""
# As pyspark's: a setup.py, and the legacy interface of setuptools.
SOURCE_PACKAGE = {
    "setup.py": "from setuptools import setup\nsetup(name='old-style', version='1', py_modules=['old_style'])\n",
    "old_style.py": "",
    "PKG-INFO": "Metadata-Version: 2.1\nName: old-style\nVersion: 1\n",
}

pytestmark = pytest.mark.slow


def with_their_own(names: Iterable[str]) -> set[str]:
    """The packages, and those that they need."""
    found: set[str] = set()
    left = list(names)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            needed = [Requirement(text) for text in distribution(name).requires or ()]
            left += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def wheel(name: str, folder: Path) -> None:
    """Make a wheel of what is installed, without its scripts."""
    installed = distribution(name)
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{installed.version}-py3-none-any.whl", "w") as archive:
        for file in installed.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                archive.write(str(file.locate()), str(file))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for pip to find everything in."""
    folder = tmp_path_factory.mktemp("wheels")
    for name in with_their_own(BUILDERS):
        wheel(name, folder)
    source = folder / "old_style-1"
    source.mkdir()
    for name, text in SOURCE_PACKAGE.items():
        (source / name).write_text(text)
    with tarfile.open(folder / "old_style-1.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    return folder


def project(folder: Path) -> Path:
    """A project with this one's script; its folder's name has a space."""
    root = folder / "my project"
    (root / "tools").mkdir(parents=True)
    (root / "project").mkdir()
    (root / "project" / "__init__.py").touch()
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "tools" / "venv.sh").write_bytes((ROOT / "tools" / "venv.sh").read_bytes())
    return root


def run(root: Path, *extras: str, wheels: Path | str, **environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_NO_CACHE_DIR": "1"}
    base = os.path.join(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    return subprocess.run(
        ["sh", str(root / "tools" / "venv.sh"), *extras],
        env={**kept, **pip, "PYTHON": base, "HOME": str(root / "no-home"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.soak
def test_a_source_package_is_built_whatever_setuptools_python_brings_and_then_no_package_is_looked_for(
    tmp_path, wheels
):
    root = project(tmp_path)
    first = run(root, "more", wheels=wheels, PIP_USER="1")  # as in the pip.conf of some shared machines
    assert first.returncode == 0, first.stderr
    python = root / ".venv" / "bin" / "python"
    assert subprocess.run([python, "-c", "import old_style, project"], cwd=tmp_path, check=False).returncode == 0

    nothing = tmp_path / "nothing"
    second = run(root, "more", wheels=nothing)
    assert (second.returncode, second.stdout) == (0, ""), "nothing is done when nothing has changed"
    with (root / "pyproject.toml").open("a") as toml:
        toml.write("\n# changed\n")
    third = run(root, "more", wheels=nothing)
    assert third.returncode == 0, third.stderr


def test_an_interpreter_that_does_not_fit_is_named(tmp_path):
    done = run(project(tmp_path), "more", wheels=tmp_path, PYTHON="/bin/false")
    assert done.returncode == 1
    assert "PYTHON=/bin/false is not Python 3.11 or later with its venv module." in done.stderr


def test_without_extras_it_says_how_it_is_used(tmp_path):
    done = run(project(tmp_path), wheels=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: tools/venv.sh EXTRAS")
    assert not (tmp_path / "project" / ".venv").exists()
