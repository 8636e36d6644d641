"""The driver's copy of a spout: what it plans, and how what it raises is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from statefx.coordinator.progress import Progress
from statefx.errors import BoltError, CheckpointMismatchError, FailedException, FencedError, InputError
from statefx.operators.context import DRIVER
from statefx.operators.spouts import (
    OpaquePartitionedTransactionalSpout,
    ReplayingSpout,
    TransactionalSpout,
    check_json,
    plans,
)
from statefx.operators.user_errors import RAISED, bolt_error
from statefx.protocol.batches import Partitions
from statefx.protocol.identity import TaskId
from statefx.protocol.jsonform import Json, json_copy
from statefx.protocol.log_state import LogState
from statefx.protocol.order import Emission, EmissionOrder

WHOLE = ""
"""The one partition of a spout that has none."""


@dataclass
class DriverSpout:
    """The driver's copy of a spout; `progress` shows a hook that takes long."""

    id: str
    spout: ReplayingSpout
    parallelism: int
    progress: Progress = field(default_factory=Progress)
    newest: int = field(default=-1, init=False)
    """The greatest number of a partition that was read before this start. Those before it without metadata were
    forgotten; behind it are new ones, of which rows come."""
    _number: int | None = field(default=None, init=False)
    _checked: int | None = field(default=None, init=False)
    """How many partitions there were when it was seen last that none of the known ones is gone."""

    @contextmanager
    def calling(self, hook: str, txid: int) -> Iterator[None]:
        """Name the spout in what it raises."""
        try:
            with self.progress.asking(self.id, hook, txid):
                yield
        except FailedException as failure:
            raise FailedException(f"spout {self.id!r}, {hook}: {failure.message}", component=self.id) from failure
        except (BoltError, FencedError, InputError):
            raise
        except RAISED as error:
            raise bolt_error(error, self.id, DRIVER, hook, txid, "spout") from error

    @property
    def emission(self) -> Emission:
        """The emission of its tasks in a transaction of which nothing is durable."""
        if plans(self.spout):
            return Emission.AGAIN
        return Emission.OPAQUE if isinstance(self.spout, OpaquePartitionedTransactionalSpout) else Emission.NEW

    def check_names(self, known: Iterable[str]) -> None:
        """Refuse a spout whose class has other partitions than its former one had."""
        one = isinstance(self.spout, TransactionalSpout)
        if any((name == WHOLE) != one for name in known):
            former, now = ("partitions", "one source") if one else ("one source", "partitions")
            raise CheckpointMismatchError(
                f"spout {self.id!r} has read {former} in this checkpoint, and its class is for {now} now: go back "
                "to the former kind of spout, or start with a new checkpointLocation",
                spout=self.id,
            )

    def partitions(self, txid: int, known: Iterable[str]) -> list[str]:
        if isinstance(self.spout, TransactionalSpout):
            return [WHOLE]
        return list(map(str, range(self._count(txid, known))))

    def _count(self, txid: int, known: Iterable[str] | None) -> int:
        """Ask how many partitions there are; raise CheckpointMismatchError if a `known` one is gone."""
        with self.calling("numPartitions", txid):
            number = self.spout.numPartitions()  # type: ignore[attr-defined]  # both other kinds have it
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise TypeError(f"numPartitions returns a whole number from 0, not {number!r}")
        # What is known has been planned, or was there at the first look: a look goes through all only if some are gone.
        lost = []
        if known is not None and (self._checked is None or number < self._checked):
            lost = sorted(int(name) for name in known if int(name) >= number)
        if lost:
            raise CheckpointMismatchError(
                f"spout {self.id!r} has {number} partitions, and partition {lost[-1]} was read before: partitions may "
                "be added, and none may go, since what is left in it would never be read. Let numPartitions count it, "
                "and emit nothing from it",
                spout=self.id,
                partitions=number,
            )
        self._number = number
        self._checked = self._checked if known is None else number
        return number

    def number(self, txid: int) -> int:
        """Return how many partitions there were at the last call of the spout; calls it if there was none."""
        return self._count(txid, None) if self._number is None else self._number

    def plan(self, txid: int, last: Partitions) -> dict[str, Json]:
        """Return the metadata of the batch that is there now, by partition; empty if there is none.

        `last` stays as it is: a spout is given copies, which it may change in place.
        """
        spout: Any = self.spout
        if isinstance(spout, TransactionalSpout):
            with self.calling("initializeTransaction", txid):
                found = check_json(spout.initializeTransaction(txid, json_copy(last.get(WHOLE))))
            return {} if found is None else {WHOLE: found}
        numbers = self._to_plan(txid, self._count(txid, last))
        planned = {}
        with self.calling("planPartitionBatch", txid):
            for number in numbers:
                name = str(number)
                found = spout.planPartitionBatch(number, json_copy(last.get(name)))
                if found is not None:
                    planned[name] = found
            checked: dict[str, Json] = check_json(planned)  # all at once: 10,000 partitions in 10 ms, one by one in 60
        if checked:
            with self.calling("partitionsToForget", txid):
                checked.update(dict.fromkeys(map(str, spout.partitionsToForget())))
        return checked

    def _to_plan(self, txid: int, count: int) -> Sequence[int]:
        """Return the partitions that may have something new."""
        with self.calling("partitionsToPlan", txid):
            asked = self.spout.partitionsToPlan()  # type: ignore[attr-defined]  # those that plan have it
            if asked is None:
                return range(count)
            numbers = list(asked)
            wrong = [each for each in numbers if type(each) is not int or not 0 <= each < count]
            if wrong:
                raise TypeError(
                    f"partitionsToPlan returns numbers from 0 to {count - 1}, or None, and not {wrong[0]!r}"
                )
            return numbers

    def orders(
        self, emission: Emission, metadata: Partitions, committed: int
    ) -> Iterator[tuple[TaskId, EmissionOrder]]:
        parts: list[dict[str, Json]] = [{} for _ in range(self.parallelism)]
        for name, said in metadata.items():
            if said is None and emission is Emission.AGAIN:  # it is forgotten; to others None says: from the beginning
                continue
            for part in parts if name == WHOLE else [parts[int(name) % self.parallelism]]:
                part[name] = said
        for task, part in enumerate(parts):
            yield TaskId(self.id, task), EmissionOrder(emission, part, committed + 1)


def check_spouts(found: LogState, spouts: Mapping[str, ReplayingSpout]) -> None:
    """Refuse a checkpoint in which a spout has read that the topology lacks, or that can't read it again.

    Under another id it would read everything again, and every row would count twice. An opaque spout is told what was
    read before, and can't be told what to read again.
    """
    planned = {spout for metadata in found.planned_metadata.values() for spout in metadata}
    for id in sorted(planned & set(spouts)):
        if isinstance(spouts[id], OpaquePartitionedTransactionalSpout):
            raise CheckpointMismatchError(
                f"spout {id!r} is opaque now, and in the checkpoint in {found.location} it has to read a batch again "
                "as it was: start once with the former class until that is committed",
                spout=id,
            )
    lacking = sorted((planned | set(found.committed_metadata)) - set(spouts))
    if lacking:
        raise CheckpointMismatchError(
            f"spout {lacking[0]!r} has read in the checkpoint in {found.location}, and this topology has no spout of "
            "that id: under another id all of it would be read again, and counted twice. If it has another name now, "
            f"start with rename={{{lacking[0]!r}: its name}}; if it is gone, with drop=[{lacking[0]!r}]; else with a "
            "new checkpointLocation",
            lacking=lacking,
        )
