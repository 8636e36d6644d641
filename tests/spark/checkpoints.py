"""Spark's checkpoint as files, without a JVM: what Spark and a driver leave, and what the next driver makes of it."""

import shutil
from pathlib import Path

from statefx.log.adoption import adoptions
from statefx.log.location import Folders
from statefx.log.takeover import read_checkpoint, take_generation
from statefx.protocol.records import Committed, Committing, Preparing, RolledBack, StreamInput
from statefx.protocol.topology_identity import TopologyIdentity
from statefx.spark.checkpoint import SparkCheckpoint

QUERY = "5109ea48-2da3-4a0d-b15d-9298cac39672"
IDENTITY = TopologyIdentity("t", "stream")


class Checkpoint:
    """A checkpoint of a stream over one file source, and the driver that was started last."""

    def __init__(self, place: Path) -> None:
        self.folders = Folders(str(place / "ck"))
        self.location = place / "ck"
        self.all_of_spark: list[SparkCheckpoint] = []
        self.sources = [0]
        self.start()

    def generation(self, adopt: str | None = None) -> int:
        """A driver takes the next generation, and no more."""
        self.log = take_generation(self.folders, IDENTITY, adoptions(adopt), shared=False)
        return self.log.state.generation

    def start(self, compact_interval: int = 10, adopt: str | None = None) -> None:
        """A driver starts, and Spark's query: the one before is dead, or sleeps."""
        self.generation(adopt)
        self.spark_s = SparkCheckpoint(self.folders, self.log, self.sources)
        self.all_of_spark.append(self.spark_s)
        self.spark_s.rebuild(compact_interval)
        if not (self.spark / "metadata").exists():
            self.write("metadata", f'{{"id":"{QUERY}"}}')

    def end(self) -> None:
        """The queries end, of all drivers."""
        for each in self.all_of_spark:
            each.remove()

    @property
    def spark(self) -> Path:
        """Spark's folder, of the driver that was started last."""
        return Path(self.spark_s.folder)

    def files(self) -> dict[str, str]:
        """What is in Spark's folder, but for its state."""
        paths = [path for path in self.spark.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.spark)): path.read_text() for path in paths if "state" not in path.parts}

    def write(self, name: str, text: str) -> None:
        path = self.spark / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(text)
        temporary.rename(path)

    def plan(self, batch: int, files: int = 1) -> None:
        """What Spark writes before it calls back."""
        lines = "".join(f'\n{{"path":"in/{batch}-{n}","batchId":{batch}}}' for n in range(files))
        self.write(f"sources/0/{batch}", f"v1{lines}")
        self.write(f"offsets/{batch}", offsets(batch))

    def prepare(self, batch: int, attempt: int = 0) -> None:
        """Spark plans a batch, and its transaction begins."""
        self.plan(batch)
        self.begin(batch, attempt)

    def begin(self, batch: int, attempt: int = 0) -> None:
        source = self.spark_s.with_notes(self.spark_s.batch(QUERY, batch))
        self.log.append(Preparing(batch + 1, attempt, self.log.state.generation, source))

    def decide(self, batch: int, attempt: int = 0) -> None:
        self.log.append(Committing(batch + 1, attempt, self.log.state.generation, {}, hooks=("count/0",)))

    def roll_back(self, batch: int, attempt: int = 0) -> None:
        self.log.append(RolledBack(batch + 1, attempt, "the executor was lost"))

    def commit(self, batch: int, attempt: int = 0) -> None:
        """All of a transaction, and what Spark notes after it."""
        self.prepare(batch, attempt)
        self.decide(batch, attempt)
        self.log.append(Committed(batch + 1))
        self.note(batch)

    def note(self, batch: int) -> None:
        """Spark notes that a batch has ended."""
        self.write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')

    def lose(self, *names: str) -> None:
        for name in names:
            shutil.rmtree(self.location / name)

    def check(self) -> None:
        read_checkpoint(self.folders)


def offsets(batch: int) -> str:
    """The text of a batch's offsets."""
    return f'v1\n{{"batchTimestampMs":17952158578{batch:02},"conf":{{}}}}\n{{"logOffset":{batch}}}'


def bare(batch: int) -> StreamInput:
    return StreamInput(QUERY, batch, offsets(batch))
