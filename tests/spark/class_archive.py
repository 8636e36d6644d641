"""Makes an archive of the classes that Spark loads: ``python -m tests.spark.class_archive``.

Half of the time that a JVM takes to start Spark goes into reading and verifying classes, and the tests start dozens of
JVMs. One that maps this archive into its memory starts in half of the time (`tests/conftest.py` names the file). A JVM
ignores an archive that is not of its own version and jars, so a stale one does no harm; it is made again when either
has changed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from tests.conftest import CLASSES, JAVA_OPTIONS, ROOT


def made_of():
    """What an archive is good for: this Java and this Spark."""
    java = Path(os.environ["JAVA_HOME"], "bin", "java")
    # Java repeats the options that it is given, and those name the archive once there is one.
    plain = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    version = subprocess.run([java, "-version"], env=plain, capture_output=True, text=True, check=True).stderr
    return f"{version}{pyspark.__file__} {pyspark.__version__}\n"


def load_classes(folder):
    """Do a little of what the tests do."""
    from statefx import submit
    from tests.spark.bolts import word_count
    from tests.spark.counting import session
    from tests.spark.running import feed, lines_of

    spark = session("local[12]", **{"spark.ui.enabled": "true", "spark.ui.port": "0"})
    feed(folder / "in", a=["x y"], b=["z"])
    lines = lines_of(spark, folder / "in")
    submit(word_count(lines), spark, folder / "stream", trigger={"availableNow": True}).awaitTermination()
    submit(word_count(spark.createDataFrame([("x y",)], "value string")), spark, folder / "batch").awaitTermination()
    jvm, gateway = spark.sparkContext._gateway.proc, spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    jvm.stdin.close()  # which ends the JVM, and has it write the archive
    jvm.wait()


def main():
    stamp = CLASSES.with_suffix(".txt")
    now = made_of()
    if CLASSES.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == now:
        return
    CLASSES.parent.mkdir(exist_ok=True)
    hidden = CLASSES.with_suffix(".tmp")
    hidden.unlink(missing_ok=True)
    os.environ["JDK_JAVA_OPTIONS"] = f"{JAVA_OPTIONS} -Xlog:disable"
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={hidden}"
    os.environ |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with tempfile.TemporaryDirectory() as folder:
        load_classes(Path(folder))
    if hidden.exists():  # a JVM that can't make one has not: tests run without it
        hidden.rename(CLASSES)
        stamp.write_text(now, encoding="utf-8")


if __name__ == "__main__":
    main()
