"""The settings of a spout's clients: which would break its promise, and what they are set to."""

from statefx.connectors.kafka.clients import Rules

_OWNED = {
    "group.id": "no group decides who reads what; group= names the one that is told how far it was read",
    "group.instance.id": "no group decides who reads what",
    "group.protocol": "no group decides who reads what",
    "partition.assignment.strategy": "no group decides who reads what",
    "isolation.level": "isolation= says it, so that the driver plans by the same offsets",
    "auto.offset.reset": "offsets that are gone must not be passed over in silence: start= and lost= say what to do",
    "enable.auto.commit": "the checkpoint says what was read, and the group is told after that",
    "auto.commit.enable": "the checkpoint says what was read, and the group is told after that",
    "enable.auto.offset.store": "the checkpoint says what was read, and the group is told after that",
    "enable.partition.eof": "a range may end in offsets that have no record, and then only this tells the end",
    "receive.message.max.bytes": "a smaller one would have the client stand still; maxRecordBytes= refuses records",
}
"""What would break the promise that each record is read once, by the reason why."""

_KEPT = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    # A client that is given more than this ends the connection, and would never get past the record.
    "receive.message.max.bytes": 1_000_000_000,
}

_DEFAULTS = {
    # What a disk or a wire has damaged would else be read as it is. 1 M records of 100 bytes take 0.6 s of a processor
    # with the sums and without.
    "check.crcs": True,
    # The end of a range in which the last offsets are markers of transactions is told by an answer without records,
    # and a broker keeps back such an answer this long: by default half a second, in each transaction.
    "fetch.wait.max.ms": 50,
    # By default, whoever has fetched enough waits a second before it fetches again: 1 M rows in 6 s, and not in 1.5.
    "fetch.queue.backoff.ms": 10,
    # What is fetched ahead of a transaction, for each partition that a task keeps warm.
    "queued.max.messages.kbytes": 16_384,
}


def rules(isolation: str) -> Rules:
    """Return what the clients of one that reads so are set to."""
    kept = {**_KEPT, "isolation.level": isolation}
    return Rules("KafkaSpout", _OWNED, _DEFAULTS, kept, ("Consumer",))
