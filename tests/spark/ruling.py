"""Payments and rules as a process of its own, to be killed: ``python -m tests.spark.ruling SETTINGS`` (JSON).

Tasks wait, or fail, at the places of `tests.spark.spouting`.
"""

import json
import os
import sys

from statefx import openState, submit
from tests.spark.counting import ONCE, session, tell
from tests.spark.spouting import Places
from tests.testing.ruling import Judge, given, recounted, ruled

TASKS, EACH = 2, 12


class HeldJudge(Judge):
    def __init__(self, work):
        self.places = Places(work)

    def executeBroadcast(self, rule, collector):
        super().executeBroadcast(rule, collector)
        self.places.pass_by("emit", self.context, self.context.txid)

    def execute(self, payment, collector):
        self.places.pass_by("execute", self.context, self.context.txid)
        super().execute(payment, collector)

    def prePrepare(self, txid):
        self.places.pass_by("prepare", self.context, txid)


def begun(spark, work, seed, pending, provider="rocksdb"):
    """What `submit` is given."""
    config = {
        "topology.max.spout.pending": pending,
        "topology.state.provider": provider,
        "topology.transaction.retry.delay.ms": 10,
    }
    return ruled(*given(seed, each=EACH), HeldJudge(str(work)), TASKS), spark, f"{work}/ck", config, ONCE


def outcome(work, judge="judge"):
    """What is judged, and the rules of each task."""
    with openState(f"{work}/ck", judge) as view, openState(f"{work}/ck", judge, map="rules", byTask=True) as rules:
        return dict(view.items()), dict(rules.items())


def expected(seed):
    judged, rules = recounted(*given(seed, each=EACH))
    return judged, {(task, name): cents for task in range(TASKS) for name, cents in rules.items()}


def play(spark, work, provider, options, trigger):
    query = submit(*begun(spark, work, provider=provider, **options))
    tell(recoveries=query.recoveries)
    query.awaitTermination()
    tell(**query.status)


def main(**given):
    spark = session("local[8]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    play(spark, **given)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
