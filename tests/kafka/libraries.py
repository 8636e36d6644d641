"""Jars, such as Kafka's own, fetched once for each machine by the Ivy that pyspark brings."""

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

CONNECTOR = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
"""Spark's own source and what it needs. None are published for this Spark; those of the releases before run in it."""

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
    return fetched("org.apache.kafka", "kafka_2.13", VERSION)


def connector() -> str:
    """Return what ``spark.jars`` has to be for Spark's own source of Kafka."""
    return ",".join(str(path) for each in CONNECTOR for path in fetched(*each, alone=True).iterdir())


def fetched(organisation: str, module: str, version: str, *, alone: bool = False) -> Path:
    """Return the folder of a module's jars, and of all that it needs unless `alone`."""
    folder = cache() / f"{module}-{version}{'-alone' if alone else ''}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as place:
            # The configuration `runtime` would leave the module itself out; `master` has nothing else.
            _fetch(Path(place), (organisation, module, version), "master" if alone else "default")
            with suppress(OSError):  # another process was quicker
                (Path(place) / "jars").rename(folder)
    return folder


def _fetch(place: Path, module: tuple[str, str, str], configuration: str) -> None:
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise UnavailableError("this pyspark brings no Ivy to fetch jars with")
    jars = place / "jars"
    command = [java(), "-jar", str(ivy), "-cache", str(place / "ivy"), "-error"]
    settings = Path.home() / ".ivy2" / "ivysettings.xml"  # where a company says which registry is its own
    command += ["-settings", str(settings)] if settings.exists() else []
    command += ["-confs", configuration, "-dependency", *module]
    command += ["-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]", "-types", "jar", "bundle"]
    what = " ".join(module)
    try:
        done = subprocess.run(
            command, cwd=place, env=quiet(), capture_output=True, text=True, timeout=FETCH_SECS, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{what} did not come within {FETCH_SECS} s") from None
    if done.returncode or not (jars / f"{module[1]}-{module[2]}.jar").exists():
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if " error " in line]
        raise UnavailableError(f"{what} can't be fetched: {said[0] if said else 'it is not found'}")
