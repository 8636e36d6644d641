"""What it takes in one task, without Spark, that each call of a bolt could be undone; no row is bad.

In turns: a bolt counts `--rows` words, in state alone, and emits its counts as well; with the default ``onError``, and
with ``onError="skip"``. Counted is the processor time of executing and of sending on what was emitted, in ms.
"""

from __future__ import annotations

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

from measuring import arguments, take_turns

from statefx import StatefulBolt
from statefx.operators.schema import parse_schema
from statefx.operators.tuples import tuple_maker
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.runtime.bolt_task import BoltTask
from statefx.runtime.collector import TaskCollector
from statefx.runtime.guard import CallGuard
from statefx.runtime.guarded_calls import GuardedCalls
from statefx.runtime.outlets import outlet_of
from statefx.runtime.worker import Worker
from statefx.state import EMPTY
from statefx.state.registry import load_provider
from statefx.state.view import task_state
from statefx.state.view.task_state import TaskState
from statefx.testing.site import Site
from statefx.topology.graph import ComponentKind, Edge, Grouping, OnError

parser = arguments(__doc__)
parser.add_argument("--turns", type=int, default=15)
args = parser.parse_args()

OUTPUT = parse_schema("word string, count long")
EDGE = Edge(0, "count", "default", "reads", Grouping("fields", ("word",)))
WORDS = [f"word{number * 7919 % args.keys}" for number in range(args.rows)]


class Count(StatefulBolt):
    """Counts words."""

    outputFields = "word string, count long"

    def __init__(self, emits: bool) -> None:
        self.emits = emits

    def initState(self, state: Any) -> None:
        self.counts = state

    def execute(self, tup: Any, collector: Any) -> None:
        count = self.counts.get(tup.word, 0) + 1
        self.counts.put(tup.word, count)
        if self.emits:
            collector.emit((tup.word, count))


def run(turn: int, *, emits: bool, guarded: bool) -> list[float]:
    """Execute the rows of one transaction; return the milliseconds that it took."""
    place = args.work / f"{turn}-{emits}-{guarded}"
    state = TaskState(Site(load_provider("memory", {}), place).open(EMPTY))
    guard = CallGuard() if guarded else None
    outlet = outlet_of(EDGE, OUTPUT, 2, 0, False, lambda target, batch: 0)
    collector = TaskCollector("count", {"default": OUTPUT}, [outlet], TransactionAttempt(1, 0), guard=guard)
    plan = SimpleNamespace(components={"count": SimpleNamespace(on_error=OnError.SKIP, kind=ComponentKind.BOLT)})
    attempt: Any = SimpleNamespace(
        id=TaskId("count", 0),
        txid=1,
        trees=None,
        collector=collector,
        outbox=SimpleNamespace(pressing=False),
        deployment=SimpleNamespace(plan=plan),
    )
    task, bolt = BoltTask(Worker(), attempt.deployment, attempt.id), Count(emits)
    bolt.initState(state)
    state.prefetch(WORDS)
    task.attempt, task._object, task._state = attempt, bolt, state
    if guard is not None:
        task._guarded = GuardedCalls(attempt, guard, state)
    task._tuples = map(tuple_maker(parse_schema("word string"), "words", "default"), zip(WORDS, strict=True))
    began = time.thread_time()
    task.resume()
    collector.flush()
    ms = (time.thread_time() - began) * 1000
    task_state.close(state)
    return [ms]


systems = {
    f"{what}, {mode}": partial(run, emits=emits, guarded=mode == "skip")
    for what, emits in (("get and put", False), ("get, put and emit", True))
    for mode in ("fail", "skip")
}
take_turns(args, systems, args.turns, references=[name for name in systems if name.endswith("fail")])
