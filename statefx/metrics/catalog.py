"""The table of metrics: names, kinds, units, labels, meanings. Exporters and the reference are made from it."""

from __future__ import annotations

from dataclasses import dataclass
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
class Metric:
    """One row of the table.

    A counter's name is without ``_total``. `unit` is that of the value, "" for a number of things, `labels` those
    besides ``topology``.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str

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


def _counter(name: str, labels: str, text: str, unit: str = "") -> Metric:
    return Metric(PREFIX + name, Kind.COUNTER, unit, tuple(labels.split()), text)


def _gauge(name: str, labels: str, text: str, unit: str = "") -> Metric:
    return Metric(PREFIX + name, Kind.GAUGE, unit, tuple(labels.split()), text)


def _seconds(name: str, labels: str, text: str) -> Metric:
    return Metric(PREFIX + name, Kind.HISTOGRAM, "seconds", tuple(labels.split()), text)


METRICS: tuple[Metric, ...] = (
    # transactions
    _counter("transactions", "outcome", "Attempts that have ended: committed, or rolled_back."),
    _counter("attempts", "", "Attempts that have begun; more than transactions where some are tried again."),
    _seconds(
        "transaction_duration_seconds",
        "phase",
        "Time of committed transactions by phase (run, wait, hooks, log, as in durationMs), and all of them together.",
    ),
    _gauge("transactions_in_flight", "", "Transactions that have begun and not ended."),
    _gauge("last_commit_timestamp_seconds", "", "When the last transaction was committed; Unix time.", "seconds"),
    _counter("recoveries", "direction", "Transactions of a former driver, rolled forward or back at the start."),
    _gauge("generation", "", "How many times the topology has been started on its checkpoint."),
    _counter("runs", "", "Spark jobs that have held the tasks; each after the first means that one was lost."),
    _gauge(
        "stuck_since_seconds",
        "",
        "Since when nothing goes on, as status['stuck'] says; Unix time, 0 where it does.",
        "seconds",
    ),
    # the log
    _seconds("log_append_seconds", "record", "Time to make a record of the log durable, with its fsync, by kind."),
    _seconds("log_fsync_seconds", "record", "How much of that was fsync: of its file, and of the folder."),
    _counter("log_bytes", "", "Bytes of these records.", "bytes"),
    # tasks and edges
    _counter(
        "task_time_seconds",
        "component task activity",
        "Time of each task, divided: busy, idle, blocked, restoring, committing. It adds up to the wall clock.",
        "seconds",
    ),
    _counter("task_rows", "component task", "Rows that each task received; of a source, those that it emitted."),
    _counter(
        "rows",
        "from to stream direction",
        "Rows by edge: out, before they are combined or an allGrouping copies them; in, those that were received.",
    ),
    _counter("bytes", "from to stream", "Bytes of the rows sent over an edge, as Arrow.", "bytes"),
    _counter("input_rows", "", "Rows of all DataFrames and spouts, each once, as numInputRows."),
    _counter("rows_late", "component", "Rows that came too late for a windowed bolt."),
    _counter("rows_ahead", "component", "Rows whose event times are too far ahead to move the watermark."),
    _counter("rows_set_aside", "component", "Rows of which a bolt raised an error, and that it has set aside."),
    _counter("dead_letters", "component", "Dead letters that a bolt or a queue has emitted."),
    _counter("rows_left_out", "component reason", "Records that a spout has skipped as it was told to: gone, refused."),
    # messages of spouts that are acked one by one
    _counter("messages", "component outcome", "Messages of a Spout: emitted, acked, failed, redelivered."),
    _counter("messages_timed_out", "", "Messages that were not acked within topology.message.timeout.secs."),
    _gauge("messages_pending", "component", "Messages of a Spout that are neither acked nor failed."),
    _gauge("message_oldest_seconds", "component", "Age of the oldest of these.", "seconds"),
    # state
    _counter("state_keys_changed", "component", "Keys that a stateful bolt has changed."),
    _counter(
        "prepared_bytes", "component", "Bytes of state that a bolt's tasks have written for transactions.", "bytes"
    ),
    _gauge("state_bytes", "component", "What a worker without caches reads to restore a bolt's state.", "bytes"),
    _gauge("state_keys", "component", "Keys of a stateful bolt, where its provider counts them."),
    _counter("snapshots", "component", "Full images of state that tasks have written."),
    _counter("snapshot_bytes", "component", "Bytes of these.", "bytes"),
    # event time
    _gauge(
        "freshness_seconds",
        "component",
        "How old the event time is up to which a component has committed: now minus its watermark.",
        "seconds",
    ),
    _gauge(
        "freshness_added_seconds",
        "component",
        "How much of that is added here: by how much a component is behind what it reads.",
        "seconds",
    ),
    _gauge("watermark_timestamp_seconds", "component", "A component's watermark, as committed; Unix time.", "seconds"),
    _gauge(
        "input_time_seconds",
        "component unit",
        "Greatest event time of each task or partition of a source: the least one holds the watermark; Unix time.",
        "seconds",
    ),
    _gauge(
        "watermark_held_seconds",
        "component unit",
        "The task or partition of a source that holds the watermark back, and by how much it is behind the furthest.",
        "seconds",
    ),
    # sources
    _gauge("source_lag_records", "component", "Records that a source has and a spout has not read."),
    _gauge("source_partition_lag_records", "component partition", "The same by partition: the 100 furthest behind."),
    _gauge(
        "source_lag_seconds",
        "component",
        "How long ago the record came that a spout reads next, at the rate of the last minute.",
        "seconds",
    ),
    _gauge("source_partition_lag_seconds", "component partition", "The same of these partitions.", "seconds"),
    _gauge(
        "source_eta_seconds", "component", "When a spout will have caught up; absent if it does not gain.", "seconds"
    ),
    _gauge("source_partition_eta_seconds", "component partition", "The same of these partitions.", "seconds"),
    _gauge("source_records_per_second", "component direction", "Records that come (in) and are read (out)."),
    _gauge("source_partition_records_per_second", "component partition direction", "The same of these partitions."),
    # sinks
    _gauge("sink_last_txid", "component", "Transaction that a sink has published last."),
    _counter("sink_rows", "component", "Rows that a sink has published, where it counts them."),
    _counter("sink_bytes", "component", "Bytes of these.", "bytes"),
    _seconds("sink_publish_seconds", "component", "Time that a sink's commit took on the driver, each try."),
    _gauge(
        "sink_stuck_since_seconds",
        "component",
        "Since when a sink's commit fails; Unix time, 0 if it does not.",
        "seconds",
    ),
    # about these
    _counter("series_left_out", "metric", 'Values that were counted under "other", or not at all: too many series.'),
)

BY_NAME = {metric.name: metric for metric in METRICS}
