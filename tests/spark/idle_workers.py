"""Keeps a test from a Python worker whose connection an earlier test's query has closed.

`statefx.spark.internals.got_closed_worker` says how that comes.
"""

from contextlib import suppress

from tests.spark.running import wait_for

WAITED_SECS = 10
"""So long the tasks of earlier tests may take to end; those of a query that outlives its test don't."""

_CLEAN = "org$apache$spark$api$python$PythonWorkerFactory$$cleanupIdleWorkers"


def drop_closed(session):
    """Have Spark forget its idle workers if one of them has no connection any more."""
    context = session.sparkContext._jsc.sc()
    with suppress(AssertionError):
        wait_for(lambda: not context.statusStore().executorList(True).head().activeTasks(), "no task", WAITED_SECS)
    for factory in factories(session):
        if not all(worker.channel().isOpen() for worker in idle(factory)):
            getattr(factory, _CLEAN)()


def factories(session):
    """Return what makes Python workers in the driver's JVM, and keeps those that are idle."""
    context = session.sparkContext
    # Not by a method of SparkEnv: to list them, the JVM would need classes that PySpark does not bring.
    field = context._gateway.jvm.java.lang.Class.forName("org.apache.spark.SparkEnv").getDeclaredField("pythonWorkers")
    field.setAccessible(True)
    return _listed(field.get(context._jsc.sc().env()).values().toSeq())


def idle(factory):
    return _listed(factory.idleWorkers())


def _listed(found):
    return [found.apply(number) for number in range(found.size())]
