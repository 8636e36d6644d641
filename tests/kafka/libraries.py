"""Kafka's own jars, fetched once for each machine by the Ivy that pyspark brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pyspark

VERSION = "4.3.1"
"""4.4.0 needs an artefact that was never published."""

FETCH_SECS = 240
"""45 jars, 44 MB: 40 s on a good line."""


class UnavailableError(Exception):
    """There is no Kafka to be had here; says why."""


def cache() -> Path:
    """Return the user's folder for what can be fetched again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "statefx"


def java() -> str:
    """Return the command that starts Java; `tools/java.sh` has found one for the Makefile."""
    home = os.environ.get("JAVA_HOME")
    found = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if found is None or not os.access(found, os.X_OK):
        raise UnavailableError("there is no Java: set JAVA_HOME")
    return found


def quiet() -> dict[str, str]:
    """Return the environment for a JVM that is none of Spark's: their archive of classes is not for it."""
    return {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}


def libraries() -> Path:
    """Return the folder of the broker's jars; fetch them if this machine has never done so."""
    folder = cache() / f"kafka-{VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as place:
            _fetch(Path(place))
            with suppress(OSError):  # another process was quicker
                (Path(place) / "jars").rename(folder)
    return folder


def _fetch(place: Path) -> None:
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise UnavailableError("this pyspark brings no Ivy to fetch Kafka with")
    jars = place / "jars"
    command = [java(), "-jar", str(ivy), "-cache", str(place / "ivy"), "-error"]
    settings = Path.home() / ".ivy2" / "ivysettings.xml"  # where a company says which registry is its own
    command += ["-settings", str(settings)] if settings.exists() else []
    # The configuration `runtime` would leave kafka_2.13 itself out.
    command += ["-confs", "default", "-dependency", "org.apache.kafka", "kafka_2.13", VERSION]
    command += ["-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]", "-types", "jar", "bundle"]
    try:
        done = subprocess.run(
            command, cwd=place, env=quiet(), capture_output=True, text=True, timeout=FETCH_SECS, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"Kafka's jars did not come within {FETCH_SECS} s") from None
    if done.returncode or not (jars / f"kafka_2.13-{VERSION}.jar").exists():
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if " error " in line]
        raise UnavailableError(f"Kafka's jars can't be fetched: {said[0] if said else 'Ivy does not say why'}")
