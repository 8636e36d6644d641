"""What the wheel has in it."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_each_package_of_the_wheel_is_typed(tmp_path):
    """Without ``py.typed``, `mypy --strict` refuses the imports that the documentation shows."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        files = set(wheel.namelist())
        (scripts,) = [wheel.read(file).decode() for file in files if file.endswith("/entry_points.txt")]
    assert "[console_scripts]\nstatefx = statefx.command:main\n" in scripts
    packages = {file.partition("/")[0] for file in files if file.endswith("/__init__.py")}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert packages == {Path(each).name for each in declared["packages"]}
    assert {package for package in packages if f"{package}/py.typed" not in files} == set()
