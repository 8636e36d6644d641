"""The table of metrics: names, kinds, labels, meanings. Exporters, ``lastProgress``, the reference are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

PREFIX = "statefx_"
"""The beginning of all names of statefx's own, which a user's metric may not have."""

TOPOLOGY = "topology"
"""The label that all metrics have besides their own."""


class Kind(StrEnum):
    """Kinds of metrics, by Prometheus's names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Field:
    """The field of ``lastProgress`` that a metric feeds: what one transaction adds to it, or the gauge after that.

    `by` are the labels by which it is shown, one in the other, all of them by default; what they leave out is added up.
    """

    key: str
    by: tuple[str, ...] = ()
    only: Mapping[str, str] = field(default_factory=dict)  # by label, of which series alone
    without: tuple[str, ...] = ()  # values of the first label that are not shown
    tail: tuple[str, ...] = ()  # where it stands below its labels


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    A counter's name is without ``_total``. `unit` is that of the value, "" for a number of things, `labels` those
    besides ``topology``. Times are in seconds, and in milliseconds in a field of `progress` that ends with ``Ms``.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    progress: Field | None = None

    @property
    def exposed(self) -> str:
        """The name that Prometheus shows."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name

    @property
    def dotted(self) -> str:
        """The name that OpenTelemetry shows."""
        return self.name.replace("_", ".", 1)


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of a histogram's buckets: from an append to a fast disk to an attempt that restores much state."""


def _counter(name: str, labels: str, text: str, unit: str = "", progress: Field | None = None) -> Metric:
    return Metric(PREFIX + name, Kind.COUNTER, unit, tuple(labels.split()), text, progress)


def _gauge(name: str, labels: str, text: str, unit: str = "", progress: Field | None = None) -> Metric:
    return Metric(PREFIX + name, Kind.GAUGE, unit, tuple(labels.split()), text, progress)


def _seconds(name: str, labels: str, text: str, progress: Field | None = None) -> Metric:
    return Metric(PREFIX + name, Kind.HISTOGRAM, "seconds", tuple(labels.split()), text, progress)


METRICS: tuple[Metric, ...] = (
    # transactions
    _counter("transactions", "outcome", "Attempts that have ended: committed, or rolled_back."),
    _counter("attempts", "", "Attempts that have begun."),
    _seconds(
        "transaction_duration_seconds",
        "phase",
        "Time of committed transactions, in all and by phase of durationMs: run, wait, hooks, log.",
        Field("durationMs", without=("all",)),
    ),
    _gauge("transactions_in_flight", "", "Transactions in flight."),
    _gauge("last_commit_timestamp_seconds", "", "Time of the last commit; Unix time.", "seconds"),
    _counter("recoveries", "direction", "Transactions of a former driver, completed or rolled back at the start."),
    _gauge("generation", "", "Number of this start on the checkpoint."),
    _counter("runs", "", "Spark jobs that have run the tasks; each after the first replaces a lost one."),
    _gauge(
        "stuck_since_seconds",
        "",
        "Since when the topology is stuck (status['stuck']); Unix time, 0 if it is not.",
        "seconds",
    ),
    # the log
    _seconds("log_append_seconds", "record", "Time to make a record of the log durable, by kind."),
    _seconds("log_fsync_seconds", "record", "The part of that in fsync."),
    _counter("log_bytes", "", "Bytes of these records.", "bytes"),
    # tasks and edges
    _counter(
        "task_time_seconds",
        "component task activity",
        "Time of each task, by activity: adds up to the wall clock.",
        "seconds",
    ),
    _counter(
        "step_seconds",
        "component step",
        "Time of a component's tasks in committed transactions, by step of boltMs.",
        "seconds",
        Field("boltMs"),
    ),
    _gauge(
        "slowest_task_seconds",
        "component",
        "All steps of the component's slowest task in the last transaction.",
        "seconds",
        Field("boltMs", tail=("slowest",)),
    ),
    _counter("task_rows", "component task", "Rows that a task received; of a source, emitted."),
    _counter(
        "rows",
        "from to stream direction",
        "Rows by edge: out, before they are combined or copied; in, received.",
        progress=Field("rows", by=("to",), only={"direction": "in"}),
    ),
    _counter("bytes", "from to stream direction", "Arrow bytes of rows by edge: out, sent; in, received.", "bytes"),
    _counter("input_rows", "", "Input rows, each once.", progress=Field("numInputRows")),
    _counter("rows_late", "component", "Rows that came too late for a windowed bolt.", progress=Field("rowsLate")),
    _counter(
        "rows_ahead",
        "component",
        "Rows whose event times are too far ahead to move the watermark.",
        progress=Field("rowsAhead"),
    ),
    _counter("rows_set_aside", "component", "Rows that onError has set aside.", progress=Field("rowsSetAside")),
    _counter("dead_letters", "component", "Dead letters that a bolt or a queue has emitted."),
    _counter(
        "rows_left_out",
        "component reason",
        "Records that a spout has skipped: gone, refused.",
        progress=Field("leftOut"),
    ),
    # calls of bolts to services
    _gauge(
        "calls_waiting",
        "component",
        "Tuples of a bolt that wait in state for another call.",
        progress=Field("callsWaiting"),
    ),
    _counter("calls_retried", "component", "Calls that failed and were, or will be, made again."),
    _gauge("breaker_state", "component task", "A task's circuit breaker: 0 closed, 1 half open, 2 open."),
    _counter("breaker_changes", "component task", "Changes of that state."),
    # messages of spouts that are acked one by one
    _counter("messages", "component outcome", "Messages of a Spout: emitted, acked, failed, redelivered."),
    _counter("messages_timed_out", "", "Messages that have timed out."),
    _gauge("messages_pending", "component", "Messages of a Spout that are neither acked nor failed."),
    _gauge("message_oldest_seconds", "component", "Age of the oldest of these.", "seconds"),
    # state
    _counter("state_keys_changed", "component", "Keys changed.", progress=Field("stateKeysChanged")),
    _gauge(
        "state_changed_bytes",
        "component",
        "By how much the last transaction has changed state_bytes; below 0 where small files were merged.",
        "bytes",
        Field("stateBytesChanged"),
    ),
    _counter("prepared_bytes", "component", "Bytes of changelogs written.", "bytes"),
    _gauge(
        "state_bytes",
        "component",
        "Bytes that a worker without caches reads to restore a bolt.",
        "bytes",
        Field("stateBytes"),
    ),
    _gauge("state_keys", "component", "Keys of a bolt, where its provider counts them.", progress=Field("stateKeys")),
    _counter("snapshots", "component", "Snapshots written."),
    _counter("snapshot_bytes", "component", "Bytes of these.", "bytes"),
    # event time
    _gauge(
        "freshness_seconds",
        "component",
        "Now minus the component's committed watermark.",
        "seconds",
    ),
    _gauge(
        "freshness_added_seconds",
        "component",
        "The part of that by which it is behind its inputs.",
        "seconds",
    ),
    _gauge(
        "watermark_timestamp_seconds",
        "component",
        "The committed watermark; Unix time.",
        "seconds",
        Field("watermarks"),
    ),
    _gauge(
        "input_time_seconds",
        "component unit",
        "Greatest event time of a source's task or partition; Unix time.",
        "seconds",
    ),
    _gauge(
        "watermark_held_seconds",
        "component unit",
        "How far the unit that holds the watermark is behind the furthest.",
        "seconds",
    ),
    # sources
    _gauge("source_lag_records", "component", "Records not read yet."),
    _gauge("source_partition_lag_records", "component partition", "The same by partition: the 100 furthest behind."),
    _gauge(
        "source_lag_seconds",
        "component",
        "Age of the next record to read, at the rate of the last minute.",
        "seconds",
    ),
    _gauge("source_partition_lag_seconds", "component partition", "The same of these partitions.", "seconds"),
    _gauge(
        "source_eta_seconds", "component", "Time until a spout has caught up; absent if it does not gain.", "seconds"
    ),
    _gauge("source_partition_eta_seconds", "component partition", "The same of these partitions.", "seconds"),
    _gauge("source_records_per_second", "component direction", "Records that come (in) and are read (out)."),
    _gauge("source_partition_records_per_second", "component partition direction", "The same of these partitions."),
    # sinks
    _gauge("sink_last_txid", "component", "Last published transaction."),
    _counter("sink_rows", "component", "Rows published, where the sink counts them."),
    _counter("sink_bytes", "component", "Bytes of these.", "bytes"),
    _seconds("sink_publish_seconds", "component", "Time of a sink's commit on the driver, each attempt."),
    _gauge(
        "sink_stuck_since_seconds",
        "component",
        "Since when a sink's commit fails; Unix time, 0 if it does not.",
        "seconds",
    ),
    # about these
    _counter("series_left_out", "metric", 'Values counted under "other", or not at all: too many series.'),
)

BY_NAME = {metric.name: metric for metric in METRICS}
