"""Makes an archive of the classes that Kafka loads: ``python -m tests.kafka.class_archive``.

A broker that maps it into its memory starts with half of the processor time (see `tests.spark.class_archive`).
"""

import subprocess
from contextlib import suppress

from tests.kafka import broker
from tests.kafka.libraries import UnavailableError, java, libraries, quiet


def main():
    with suppress(UnavailableError):  # its tests are skipped
        stamp = broker.CLASSES.with_suffix(".txt")
        version = subprocess.run([java(), "-version"], env=quiet(), capture_output=True, text=True, check=True).stderr
        now = f"{version}{libraries()}\n"
        if not (broker.CLASSES.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == now):
            make()
            stamp.write_text(now, encoding="utf-8")


def make():
    broker.CLASSES.parent.mkdir(exist_ok=True)
    broker.CLASSES.unlink(missing_ok=True)
    hidden = broker.CLASSES.with_suffix(".tmp")
    broker.JVM += (f"-XX:ArchiveClassesAtExit={hidden}", "-Xlog:disable")
    with broker.KafkaBroker() as made:
        made.transact(topic := made.topic(), "a")
        made.read(topic, 1)
        made.end()
    with suppress(FileNotFoundError):  # a JVM that can't make one has not: brokers start without it
        hidden.rename(broker.CLASSES)


if __name__ == "__main__":
    main()
