"""Names that would never be called are refused when the class is created."""

from abc import abstractmethod
from functools import wraps

import pytest

from statefx import (
    BasicBolt,
    BatchBolt,
    Bolt,
    Committer,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    Sink,
    Stateful,
    StatefulBolt,
    TransactionalSpout,
)
from statefx.operators.hooks import overrides


def define(base, **members):
    return type("Mine", (base,) if isinstance(base, type) else base, members)


def hook(self, *args):
    """Take anything, so that only the name is judged."""


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("init_state", "initState"),
        ("initstate", "initState"),
        ("InitState", "initState"),
        ("initStat", "initState"),
        ("pre_prepare", "prePrepare"),
        ("prePreapre", "prePrepare"),
        ("precommit", "preCommit"),
        ("pre_rollback", "preRollback"),
        ("finish_batch", "finishBatch"),
        ("finishBatchs", "finishBatch"),
        ("execute_batch", "executeBatch"),
        ("Execute", "execute"),
        ("exceute", "execute"),
        ("execut", "execute"),
        ("exekute", "execute"),
        ("opne", "open"),
        ("colse", "close"),
        ("output_fields", "outputFields"),
        ("outputField", "outputFields"),
        ("state_version", "stateVersion"),
        ("migrate_state", "migrateState"),
        ("migrateStates", "migrateState"),
        ("migrate_key", "migrateKey"),
        ("migrateKeys", "migrateKey"),
        ("downgrade_state", "downgradeState"),
        ("downgradKey", "downgradeKey"),
        ("declareOutputFields", "outputFields"),
        ("declare_output_fields", "outputFields"),
        ("prepare", "open"),
        ("cleanup", "close"),
    ],
)
@pytest.mark.parametrize("base", [Bolt, BasicBolt, BatchBolt, StatefulBolt])
def test_a_near_miss_is_refused_and_names_the_hook(base, name, right):
    with pytest.raises(TypeError, match=rf"Mine\.{name} would never be called: the hook is {right}"):
        define(base, **{name: hook})


@pytest.mark.parametrize(
    "name",
    [
        "executed",
        "executes",
        "oven",
        "opens",
        "closet",
        "opened",
        "state",
        "counts",
        "fields",
        "score",
        "_init_state",
        "commit",
    ],
)
def test_names_of_the_users_own_are_left_alone(name):
    define(StatefulBolt, **{name: hook})


def test_a_near_miss_in_a_mixin_is_refused_too():
    class Counting:
        def init_state(self, state):
            """Look like a hook."""

    with pytest.raises(TypeError, match="initState"):
        define((Counting, StatefulBolt))


@pytest.mark.parametrize(
    "name", ["initState", "prePrepare", "preCommit", "preRollback", "stateVersion", "migrateState", "migrateKey"]
)
@pytest.mark.parametrize("base", [Bolt, BasicBolt, BatchBolt])
def test_a_hook_of_stateful_bolts_on_another_is_refused(base, name):
    with pytest.raises(TypeError, match=rf"{name} is a hook of Stateful\. Derive Mine from Stateful"):
        define(base, **{name: hook})


@pytest.mark.parametrize("base", [Bolt, BasicBolt, StatefulBolt])
def test_finish_batch_on_a_bolt_without_batches_is_refused(base):
    with pytest.raises(TypeError, match="finishBatch is a hook of BatchBolt"):
        define(base, finishBatch=hook)


@pytest.mark.parametrize(
    "bases", [(Stateful, Bolt), (Bolt, Stateful), (Stateful, BatchBolt), (StatefulBolt, Committer)]
)
def test_stateful_is_a_mixin_for_every_bolt(bases):
    bolt = define(bases, execute=hook, initState=hook, prePrepare=hook)()
    assert isinstance(bolt, Stateful)
    assert isinstance(bolt, Bolt)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("execute", lambda self, tup: None, r"def execute\(self, tup, collector\)"),
        ("open", lambda self: None, r"def open\(self, context\)"),
        ("close", lambda self, force: None, r"def close\(self\)"),
        ("initState", lambda self: None, r"def initState\(self, state\)"),
        ("preCommit", lambda self, txid, attempt: None, r"def preCommit\(self, txid\)"),
        ("migrateKey", lambda self, key: None, r"def migrateKey\(self, version, key\)"),
        ("downgradeKey", lambda self, key: None, r"def downgradeKey\(self, version, key\)"),
        ("downgradeState", lambda self, key, value: None, r"def downgradeState\(self, version, key, value\)"),
    ],
)
def test_a_hook_with_other_arguments_is_refused(name, wrong, right):
    with pytest.raises(TypeError, match=rf"Mine\.{name} can't be called.*{right}"):
        define(StatefulBolt, **{name: wrong})


@pytest.mark.parametrize(
    ("base", "name", "wrong", "right"),
    [
        (TransactionalSpout, "initializeTransaction", lambda self, previous, txid: None, "self, txid, previous"),
        (StatefulBolt, "migrateKey", lambda self, key, version: None, "self, version, key"),
        (StatefulBolt, "downgradeState", lambda self, key, value, version: None, "self, version, key, value"),
        (
            TransactionalSpout,
            "emitBatch",
            lambda self, collector, metadata, attempt: None,
            "self, attempt, metadata, collector",
        ),
        (TransactionalSpout, "emitBatch", lambda self, collector, metadata, tx: None, "attempt, metadata, collector"),
        (
            OpaquePartitionedTransactionalSpout,
            "emitPartitionBatch",
            lambda self, last_metadata, attempt, collector, partition: None,
            "self, attempt, collector, partition, metadata",
        ),
        (BasicBolt, "execute", staticmethod(lambda collector, tup: None), "self, tup, collector"),
    ],
)
def test_a_hook_with_its_arguments_in_another_order_is_refused(base, name, wrong, right):
    with pytest.raises(TypeError, match=rf"Mine\.{name} has the hook's arguments in another order\. Write .*{right}"):
        define(base, **{name: wrong})


def test_arguments_of_other_names_and_those_that_a_decorator_hands_on_are_fine():
    def by_name(function):
        @wraps(function)
        def called(self, attempt, metadata, collector):
            return function(self, collector=collector, metadata=metadata, attempt=attempt)

        return called

    def emit(self, collector, metadata, attempt):
        pass

    define(TransactionalSpout, emitBatch=by_name(emit))
    define(TransactionalSpout, emitBatch=lambda self, tx, what, out: None)
    define(TransactionalSpout, emitBatch=lambda self, *args: None)
    define(OpaquePartitionedTransactionalSpout, emitPartitionBatch=lambda self, tx, out, partition, lastMetadata: None)
    define(BasicBolt, execute=lambda self, row, out, tup=None: None)


def test_a_hook_with_more_optional_arguments_is_fine():
    define(BasicBolt, execute=lambda self, row, out, times=1: None)


def test_a_generator_or_coroutine_is_refused():
    def generate(self, tup, collector):
        yield tup

    async def wait(self, tup, collector):
        return tup

    async def stream(self, tup, collector):
        yield tup

    async def static(tup, collector):
        return tup

    for function in (generate, wait, stream, staticmethod(static)):
        with pytest.raises(TypeError, match="would never run"):
            define(BasicBolt, execute=function)


def test_a_generator_that_a_decorator_runs_is_fine():
    def emitting(generate):
        @wraps(generate)
        def execute(self, tup, collector):
            for values in generate(self, tup, collector):
                collector.emit(values)

        return execute

    def generate(self, tup, collector):
        yield tup

    assert define(BasicBolt, execute=emitting(generate))()


def test_a_static_hook_is_judged_by_its_own_arguments():
    with pytest.raises(TypeError, match=r"Mine\.execute can't be called"):
        define(BasicBolt, execute=staticmethod(lambda self, tup, collector: None))
    assert define(BasicBolt, execute=staticmethod(lambda tup, collector: None))()


def test_a_bolt_that_takes_no_input_can_not_be_instantiated():
    with pytest.raises(TypeError, match=r"Mine has neither hook .* def execute\(self, tup, collector\)"):
        define(BasicBolt)()
    define(BasicBolt, execute=hook)()
    define(BasicBolt, executeBatch=hook)()


def test_a_stateful_bolt_without_init_state_can_not_be_instantiated():
    with pytest.raises(TypeError, match="initState"):
        define(StatefulBolt, execute=hook)()


def test_users_may_have_abstract_bolts_of_their_own():
    class Scored(BasicBolt):
        @abstractmethod
        def score(self, tup): ...

        def execute(self, tup, collector):
            collector.emit((self.score(tup),))

    with pytest.raises(TypeError, match="score"):
        Scored()
    assert define(Scored, score=lambda self, tup: 1)().score(None) == 1


def test_a_bolt_may_take_arguments():
    class Keep(BasicBolt):
        def __init__(self, least, *, most):
            self.bounds = (least, most)

        def execute(self, tup, collector): ...

    assert Keep(1, most=2).bounds == (1, 2)


def test_vectorised_bolts_are_told_apart():
    assert not define(BasicBolt, execute=hook)().vectorised
    assert define(BasicBolt, executeBatch=hook)().vectorised
    assert define(BasicBolt, execute=hook, executeBatch=hook)().vectorised


def test_overrides_sees_the_users_own_hooks_only():
    mine = define(StatefulBolt, execute=hook, preCommit=hook)
    assert overrides(mine, "preCommit")
    assert overrides(define(mine), "preCommit")
    assert not overrides(mine, "prePrepare")


KINDS_OF_SPOUTS = [TransactionalSpout, PartitionedTransactionalSpout, OpaquePartitionedTransactionalSpout]


@pytest.mark.parametrize(
    ("base", "name", "right"),
    [
        (PartitionedTransactionalSpout, "emitPartitionBatchnew", "emitPartitionBatchNew"),
        (PartitionedTransactionalSpout, "emitPartitonBatchNew", "emitPartitionBatchNew"),
        (PartitionedTransactionalSpout, "numPartition", "numPartitions"),
        (PartitionedTransactionalSpout, "num_partitions", "numPartitions"),
        (PartitionedTransactionalSpout, "plan_partition_batch", "planPartitionBatch"),
        (PartitionedTransactionalSpout, "emitBatchNew", "emitPartitionBatchNew"),
        (OpaquePartitionedTransactionalSpout, "emitBatchNew", "emitPartitionBatch"),
        (OpaquePartitionedTransactionalSpout, "emit_partition_batch", "emitPartitionBatch"),
        (OpaquePartitionedTransactionalSpout, "getPartitionsForBatch", "numPartitions"),
        (OpaquePartitionedTransactionalSpout, "refreshPartitions", "initPartitions"),
        (TransactionalSpout, "emitBatchNew", "emitBatch"),
        (TransactionalSpout, "initialiseTransaction", "initializeTransaction"),
        *((base, "is_ready", "isReady") for base in KINDS_OF_SPOUTS),
        *((base, "isRedy", "isReady") for base in KINDS_OF_SPOUTS),
        *((base, "cleanup_before", "cleanupBefore") for base in KINDS_OF_SPOUTS),
        *((base, "declareOutputFields", "outputFields") for base in KINDS_OF_SPOUTS),
        (TransactionalSpout, "nextTuple", "emitBatch"),
        (OpaquePartitionedTransactionalSpout, "nextTuple", "emitPartitionBatch"),
    ],
)
def test_a_near_miss_in_a_spout_is_refused_and_names_the_method(base, name, right):
    with pytest.raises(TypeError, match=rf"Mine\.{name} would never be called: the hook is {right}\."):
        define(base, **{name: hook})


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("checkSchema", "check_schema"),
        ("check_shema", "check_schema"),
        ("conflcit", "conflict"),
        ("identiy", "identity"),
    ],
)
def test_a_near_miss_in_a_sink_is_refused_and_names_the_method(name, right):
    with pytest.raises(TypeError, match=rf"Mine\.{name} would never be called: the hook is {right}\."):
        define(Sink, **{name: hook})
    with pytest.raises(TypeError, match=r"Mine\.check_schema can't be called .* def check_schema\(self, schema\)"):
        define(Sink, check_schema=lambda self: None)


@pytest.mark.parametrize(
    ("base", "name", "owner"),
    [
        (PartitionedTransactionalSpout, "emitBatch", "TransactionalSpout"),
        (TransactionalSpout, "emitPartitionBatch", "PartitionedTransactionalSpout or Opaque"),
        (OpaquePartitionedTransactionalSpout, "planPartitionBatch", "PartitionedTransactionalSpout"),
        (OpaquePartitionedTransactionalSpout, "emitPartitionBatchNew", "PartitionedTransactionalSpout"),
    ],
)
def test_a_method_of_another_kind_of_spout_is_refused(base, name, owner):
    with pytest.raises(TypeError, match=rf"{name} is a hook of {owner}"):
        define(base, **{name: hook})


@pytest.mark.parametrize(
    ("base", "name", "wrong", "right"),
    [
        (TransactionalSpout, "emitBatch", lambda self, attempt, collector: None, "attempt, metadata, collector"),
        (PartitionedTransactionalSpout, "numPartitions", lambda self, conf: None, r"\(self\)"),
        (
            OpaquePartitionedTransactionalSpout,
            "emitPartitionBatch",
            lambda self: None,
            "collector, partition, metadata",
        ),
    ],
)
def test_a_method_of_a_spout_with_other_arguments_is_refused(base, name, wrong, right):
    with pytest.raises(TypeError, match=rf"Mine\.{name} can't be called.*{right}"):
        define(base, **{name: wrong})


def test_what_emits_may_be_a_generator_and_what_plans_may_not():
    def generate(self, *args):
        yield args

    async def stream(self, *args):
        yield args

    define(PartitionedTransactionalSpout, emitPartitionBatch=generate, emitPartitionBatchNew=generate)
    for name, function in [("planPartitionBatch", generate), ("isReady", generate), ("emitPartitionBatch", stream)]:
        with pytest.raises(TypeError, match=rf"{name} would never run"):
            define(PartitionedTransactionalSpout, **{name: function})


def test_a_spout_s_own_helpers_are_left_alone():
    class Mine(PartitionedTransactionalSpout):
        partitions = 3

        def ack(self, last):
            return last

        def numPartitions(self):
            return self.partitions

        def planPartitionBatch(self, partition, lastMetadata):
            return self.ack(lastMetadata)

        def emitPartitionBatch(self, attempt, collector, partition, metadata):
            self.emit(collector)

        def emit(self, collector): ...

    assert Mine().numPartitions() == 3
