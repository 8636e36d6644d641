"""What emitting takes in one task, without Spark: from ``emit`` to the Arrow batches for two tasks of a consumer.

``--rows`` of one shape are emitted a batch. The rows are there before the clock starts, so that nothing but emitting is
in the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from measuring import arguments, latency

from statefx.operators.schema import parse_schema
from statefx.protocol.identity import TransactionAttempt
from statefx.runtime.collector import TaskCollector
from statefx.runtime.outlets import outlet_of
from statefx.topology.graph import Edge, Grouping

SHAPES: dict[str, tuple[str, str, Callable[[int], tuple[Any, ...]]]] = {
    "string": ("a string", "fields", lambda n: (f"word{n}",)),
    "string-long": ("a string, b long", "fields", lambda n: (f"word{n}", n)),
    "long": ("a long", "shuffle", lambda n: (n,)),
    "strings": ("a string, b string, c string", "shuffle", lambda n: (f"word{n}", "some", "more")),
    "array": ("a array<string>", "shuffle", lambda n: ([f"word{n}", "some", "more"],)),
    "struct": ("a struct<x:long,y:string>", "shuffle", lambda n: ({"x": n, "y": "some"},)),
}
"""Schema, grouping, and a row for the number of its key."""


def main() -> None:
    """Emit batch after batch."""
    parser = arguments(__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    args = parser.parse_args()
    ddl, grouping, row = SHAPES[args.shape]
    schema = parse_schema(ddl)
    rows = [row(n % args.keys) for n in range(args.rows)]
    edge = Edge(0, "emits", "default", "reads", Grouping(grouping, ("a",) if grouping == "fields" else ()))
    spans = []
    for _ in range(args.warmup + args.batches):
        outlet = outlet_of(edge, schema, 2, 0, False, lambda target, batch: 0)
        collector = TaskCollector("emits", {"default": schema}, [outlet], TransactionAttempt(1, 0))
        started = time.perf_counter()
        emit = collector.emit
        for each in rows:
            emit(each)
        collector.flush()
        spans.append((time.perf_counter() - started) * 1000)
    latency(args, spans, shape=args.shape)


if __name__ == "__main__":
    main()
