"""A checkpoint as files, without a JVM: what Spark and a driver leave in it."""

from pathlib import Path

from statefx.coordinator.generation import read_checkpoint, take_generation
from statefx.coordinator.location import Folders
from statefx.protocol.records import Committed, Committing, Preparing, StreamInput
from statefx.protocol.topology_identity import TopologyIdentity
from statefx.spark import offsets, part

QUERY = "5109ea48-2da3-4a0d-b15d-9298cac39672"
IDENTITY = TopologyIdentity("t", "stream")


class Checkpoint:
    """A checkpoint of a stream over one file source."""

    def __init__(self, place: Path) -> None:
        self.found = Folders(str(place / "ck"))
        self.location = place / "ck"
        self.take_over()
        for name in ("offsets", "commits", "sources/0"):
            (self.spark / name).mkdir(parents=True)
        (self.spark / "metadata").write_text(f'{{"id":"{QUERY}"}}')

    def generation(self) -> int:
        """A driver takes the next generation, and no more."""
        self.log = take_generation(self.found, IDENTITY, None, shared=False)
        return self.log.state.generation

    def part(self, generation: int) -> None:
        """The driver of this generation takes Spark's part."""
        self.folders = part.take(self.found, offsets.wanted(read_checkpoint(self.found)), generation)

    def take_over(self) -> None:
        """A driver starts."""
        self.part(self.generation())

    @property
    def spark(self) -> Path:
        """Spark's part, of the driver that has taken it last."""
        return Path(self.folders.spark)

    @property
    def parts(self) -> list[str]:
        """The names of all there are."""
        return sorted(path.name for path in self.location.glob("spark*"))

    def plan(self, batch: int) -> StreamInput:
        """What Spark writes before it calls back."""
        text = f'v1\n{{"batchTimestampMs":17952158578{batch:02},"conf":{{}}}}\n{{"logOffset":{batch}}}'
        (self.spark / "sources" / "0" / str(batch)).write_text(f'v1\n{{"path":"in/{batch}","batchId":{batch}}}')
        (self.spark / "offsets" / str(batch)).write_text(text)
        return StreamInput(QUERY, batch, text)

    def offsets(self, batch: int) -> str:
        """The text of a batch's offsets."""
        return (self.spark / "offsets" / str(batch)).read_text()

    def prepare(self, batch: int, attempt: int = 0) -> None:
        self.log.append(Preparing(batch + 1, attempt, self.log.state.generation, self.plan(batch)))

    def decide(self, batch: int, attempt: int = 0) -> None:
        self.log.append(Committing(batch + 1, attempt, self.log.state.generation, {}, hooks=("count/0",)))

    def commit(self, batch: int) -> None:
        """All of a transaction, and what Spark notes after it."""
        self.prepare(batch)
        self.decide(batch)
        self.log.append(Committed(batch + 1))
        (self.spark / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def lose(self, *names: str) -> None:
        for name in names:
            (self.spark / name).unlink()

    def check(self) -> None:
        offsets.check(self.found, read_checkpoint(self.found))

    def restore(self) -> list[int]:
        return offsets.restore(self.folders, read_checkpoint(self.folders))
