"""What is gone before it was read, and whether the query ends with that."""

from __future__ import annotations

import logging

from statefx.connectors.kafka.rows import TopicPartition
from statefx.errors import InputError

logger = logging.getLogger("statefx")


class Losses:
    """Decides whether the query ends with what is gone, and warns where it goes on.

    Parameters
    ----------
    allowed : bool
        Whether it goes on: ``lost='skip'``.
    """

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self._said: set[str] = set()

    def pass_over(self, tp: TopicPartition, start: int, first: int) -> None:
        """Pass over the offsets from `start` to before `first`; InputError if that is not allowed."""
        said = f"{first - start} offsets of {tp}, from {start} to before {first}, were deleted and never read"
        if not self.allowed:
            raise InputError(
                f"{said}: by the topic's retention, or by hand. Start with a new checkpointLocation, or set "
                "lost='skip' to go on behind them",
                topic=tp.topic, partition=tp.partition, start=start, stop=first,
            )  # fmt: skip
        logger.warning("%s; they are passed over (lost='skip')", said)

    def made_again(self, tp: TopicPartition, offset: int) -> None:
        """Leave a topic that was read up to an offset for a new one of its name; InputError as above."""
        said = f"topic {tp.topic!r} was deleted, or deleted and made again; {tp} was read up to offset {offset}"
        self._leave(f"{said} of the former one", "read the new one from its beginning", tp, offset)

    def deleted(self, tp: TopicPartition, offset: int) -> None:
        """Leave a topic that was read up to an offset, and is gone; InputError as above."""
        said = f"topic {tp.topic!r} was deleted; {tp} was read up to offset {offset}"
        self._leave(said, "go on with the other topics", tp, offset)

    def _leave(self, said: str, then: str, tp: TopicPartition, offset: int) -> None:
        if not self.allowed:
            raise InputError(
                f"{said}. Start with a new checkpointLocation, or set lost='skip' to {then}",
                topic=tp.topic, partition=tp.partition, offset=offset,
            )  # fmt: skip
        if said not in self._said:  # a deleted topic stays deleted, with each look
            self._said.add(said)
            logger.warning("%s; records behind that may never have been read (lost='skip')", said)


def cut_off(tp: TopicPartition, offset: int, end: str) -> InputError:
    """Return the error of a partition whose last records are gone that were read: no policy allows that."""
    return InputError(
        f"{tp} was read up to offset {offset}, and {end}: its last records were lost in the cluster (an election of "
        "a replica that did not have them), or its data were restored. New records take the offsets of those that were "
        "read. Start with a new checkpointLocation",
        topic=tp.topic, partition=tp.partition, offset=offset,
    )  # fmt: skip
