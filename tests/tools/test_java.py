"""`tools/java.sh` on machines that have no Java, an old one, or a package manager that only mentions a Java.

The script looks in the usual folders itself, so each run has mounts of its own that hide what the machine has there.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
UNSHARE = ["unshare", "--map-root-user", "--mount"]

# What `apt-cache show` was seen to answer on Debian 13: nothing, and success, for a name that others only mention.
APT_CACHE = """#!/bin/sh
case $2 in
    openjdk-17-jre-headless) exit 0 ;;
    openjdk-21-jre-headless) printf 'Package: %s\\nVersion: 21.0.12\\n' "$2" ;;
    *) exit 100 ;;
esac
"""
APT_GET = """#!/bin/sh
case "$*" in
    update) exit 0 ;;
    *openjdk-21-jre-headless) cp -r "$STAGED" /usr/lib/jvm/java-21 ;;
    *) echo "has no installation candidate" >&2; exit 100 ;;
esac
"""


def java(home: Path, version: str, *, at: Path | None = None) -> None:
    """Write a java of which only what it says of itself is there; `at` is where it lies until it is installed."""
    text = f"    java.home = {home}\\n    java.specification.version = {version}\\n"
    command((at or home) / "bin" / "java", f"#!/bin/sh\nprintf 'Property settings:\\n{text}' >&2\n")


def command(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def run(folder: Path, *, path: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the script where the machine's own folder of Javas is empty."""
    hide = ["mount", "-t", "tmpfs", "tmpfs", "/usr/lib/jvm"]
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, *hide], capture_output=True, check=False).returncode:
        pytest.skip("needs a folder /usr/lib/jvm that may be hidden by unshare --map-root-user --mount")
    return subprocess.run(
        [*UNSHARE, "sh", "-c", f'{" ".join(hide)} && exec "$0"', str(ROOT / "tools" / "java.sh")],
        env={"PATH": f"{path}:/usr/bin:/bin", "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_java_that_is_there_is_found_and_nothing_is_said(tmp_path):
    java(tmp_path / "jdk", "21")
    done = run(tmp_path, path=str(tmp_path / "jdk" / "bin"))
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(tmp_path / "jdk"), "")


@pytest.mark.parametrize("version", ["1.8", "11"])
def test_an_old_java_is_passed_over_and_the_first_that_can_be_had_is_installed(tmp_path, version):
    old = tmp_path / "old"
    java(old, version)
    java(Path("/usr/lib/jvm/java-21"), "21", at=tmp_path / "staged")
    command(tmp_path / "apt" / "apt-cache", APT_CACHE)
    command(tmp_path / "apt" / "apt-get", APT_GET)
    path = f"{tmp_path / 'apt'}:{old / 'bin'}"
    done = run(tmp_path, path=path, JAVA_HOME=str(old), STAGED=str(tmp_path / "staged"))
    assert (done.returncode, done.stdout.strip()) == (0, "/usr/lib/jvm/java-21"), done.stderr


def test_where_none_can_be_installed_the_line_to_run_is_told(tmp_path):
    command(tmp_path / "apt" / "apt-cache", "#!/bin/sh\nexit 100\n")
    command(tmp_path / "apt" / "apt-get", APT_GET)
    done = run(tmp_path, path=str(tmp_path / "apt"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "apt-get install --yes --no-install-recommends openjdk-17-jre-headless" in done.stderr.splitlines()[-1]


def test_without_root_the_line_to_run_names_a_package_that_can_be_had(tmp_path):
    command(tmp_path / "apt" / "apt-cache", APT_CACHE)
    command(tmp_path / "apt" / "apt-get", APT_GET)
    command(tmp_path / "apt" / "id", "#!/bin/sh\necho 1000\n")
    command(tmp_path / "apt" / "sudo", "#!/bin/sh\nexit 1\n")
    done = run(tmp_path, path=str(tmp_path / "apt"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "apt-get update && apt-get install" in done.stderr
    assert done.stderr.rstrip().endswith("openjdk-21-jre-headless'")
