"""The commit or the rollback of one task: preCommit -> commit, preRollback."""

from __future__ import annotations

from contextlib import AbstractContextManager

from statefx.errors import BoltError, FailedException, FencedError, StatePhaseError
from statefx.operators import Stateful
from statefx.operators.hooks import overrides
from statefx.plan.deployment import Deployment
from statefx.protocol.barrier import Report
from statefx.protocol.commands import Resolution
from statefx.protocol.failure import FailureKind
from statefx.protocol.identity import TaskId, Version
from statefx.protocol.order import TaskResolution
from statefx.runtime.bolts import close_bolt, hook, init_state, open_operator, view_of
from statefx.runtime.worker import Worker
from statefx.state.contract.store import StateStore, open_store
from statefx.state.view import lent

HOOKS = {Resolution.COMMIT: "preCommit", Resolution.ROLLBACK: "preRollback"}


def resolve_task(worker: Worker, deployment: Deployment, order: TaskResolution, task: TaskId) -> Report:
    """Commit or roll back one task; whatever goes wrong is reported, never raised."""
    try:
        _TaskResolution(worker, deployment, order, task).run()
    except FencedError as error:  # this driver ends, and its successor carries the decision out (rule 6.5)
        return Report(*task, error.message, FailureKind.FENCED)
    except BoltError as error:
        # No further try would mend a hook that changes state where it can't (rule 7.2); all else is tried for ever
        # (6.11).
        kind = FailureKind.MISUSE if isinstance(error.__cause__, StatePhaseError) else FailureKind.BOLT
        return Report(*task, error.message, kind, error.data)
    except FailedException as error:
        return Report(*task, error.message, FailureKind.BOLT)
    except Exception as error:  # noqa: BLE001 - a provider's client raises what it likes
        return Report(*task, f"{type(error).__name__}: {error}", FailureKind.STORE)
    return Report(*task)


class _TaskResolution:
    def __init__(self, worker: Worker, deployment: Deployment, order: TaskResolution, task: TaskId) -> None:
        self._deployment = deployment
        self._order = order
        self._task = task
        self._provider = worker.provider(deployment)

    def run(self) -> None:
        """Call the hook, if the bolt has one, then tell the store.

        In this order: a store that is committed can't be told again what the hook may still refuse. Both may have been
        done before, by this driver or another one, so both must be repeatable.
        """
        bolt = self._deployment.plan.components[self._task.component].operator
        assert bolt is not None
        # Rule 1.7: a record of before may name a task whose bolt has lost its hook; its store is told all the same.
        if overrides(type(bolt), HOOKS[self._order.resolution]):
            self._call_hook()
        if self._order.resolution is Resolution.COMMIT and not self._provider.capabilities.lazy_commit:
            # Rule 4.8: opened at the version before. The server may have this one already, from a try before this.
            state = self._order.state(self._task)
            store = self._open(state.previous)
            try:
                store.commit(self._order.attempt.txid, state.version.token)
            finally:
                store.close()

    def _call_hook(self) -> None:
        """Call the hook on an object of its own: the one that prepared may be in another process, or gone."""
        attempt = self._order.attempt
        bolt = open_operator(self._deployment, self._task, attempt)  # rule 7.2: never one that the worker has kept
        assert isinstance(bolt, Stateful)
        state = None
        try:
            state = view_of(
                self._deployment,
                self._task,
                bolt,
                attempt.txid,
                self._open,
                read_only=True,
                clock_ms=self._order.clock_ms,
            )
            init_state(self._task, bolt, state, attempt.txid)
            with self._hook(HOOKS[self._order.resolution]):
                if self._order.resolution is Resolution.COMMIT:
                    bolt.preCommit(attempt.txid)
                else:
                    bolt.preRollback()
        finally:
            if state is not None:
                lent.close(state)
            close_bolt(bolt)

    def _open(self, version: Version | None = None) -> StateStore:
        context = self._deployment.state_context(self._order, self._task, version=version)
        return open_store(self._provider, self._deployment.namespace(*self._task), context)

    def _hook(self, name: str) -> AbstractContextManager[None]:
        return hook(self._task, name, self._order.attempt.txid)
