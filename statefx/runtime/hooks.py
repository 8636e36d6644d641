"""The commit and the rollback of one task: preCommit -> commit, preRollback -> rollback."""

from __future__ import annotations

from functools import partial

from statefx.errors import BoltError, FailedException, FencedError, StatePhaseError
from statefx.operators import Stateful
from statefx.operators.hooks import overrides
from statefx.plan.deployment import Deployment
from statefx.protocol.commands import Resolution
from statefx.protocol.failure import FailureKind
from statefx.protocol.identity import EMPTY, TaskId, Version
from statefx.protocol.order import ResolutionOrder
from statefx.protocol.report import Report
from statefx.runtime.task import close_bolt, fresh_bolt, hook, provider_of, view_of
from statefx.state.contract.store import StateStore
from statefx.state.view import lent

HOOKS = {Resolution.COMMIT: "preCommit", Resolution.ROLLBACK: "preRollback"}


def run_hooks(deployment: Deployment, order: ResolutionOrder, task: TaskId) -> Report:
    """Commit or roll back one task; whatever goes wrong is reported, never raised."""
    try:
        _Phase(deployment, order, *task).run()
    except FencedError as error:
        return Report(*task, error.message, FailureKind.FENCED)
    except BoltError as error:
        kind = FailureKind.MISUSE if isinstance(error.__cause__, StatePhaseError) else FailureKind.BOLT
        return Report(*task, error.message, kind, error.data)
    except FailedException as error:
        return Report(*task, error.message, FailureKind.BOLT)
    except Exception as error:  # noqa: BLE001 - a provider's client raises what it likes
        return Report(*task, f"{type(error).__name__}: {error}", FailureKind.STORE)
    return Report(*task)


class _Phase:
    def __init__(self, deployment: Deployment, order: ResolutionOrder, component: str, task: int) -> None:
        self._deployment = deployment
        self._order = order
        self._component = component
        self._task = task
        self._provider = provider_of(deployment)

    def run(self) -> None:
        """Call the hook on a fresh bolt, if it has one, then the store."""
        bolt = self._deployment.plan.components[self._component].bolt
        assert bolt is not None
        if overrides(type(bolt), HOOKS[self._order.resolution]):
            self._hook()
        if self._order.resolution is Resolution.COMMIT and not self._provider.capabilities.lazy_commit:
            store = self._open(self._previous())
            try:
                token = self._order.order.version(self._component, self._task).token
                store.commit(self._order.attempt.txid, token)
            finally:
                store.close()

    def _previous(self) -> Version:
        return self._order.previous.get(str(TaskId(self._component, self._task)), EMPTY)

    def _hook(self) -> None:
        attempt = self._order.attempt
        bolt = fresh_bolt(self._deployment, self._component, self._task, attempt)
        assert isinstance(bolt, Stateful)
        state = None
        try:
            opened = partial(self._open, None)
            state = view_of(self._deployment, self._component, self._task, bolt, attempt.txid, opened, read_only=True)
            with self._wrapped("initState"):
                bolt.initState(state)
            with self._wrapped(HOOKS[self._order.resolution]):
                if self._order.resolution is Resolution.COMMIT:
                    bolt.preCommit(attempt.txid)
                else:
                    bolt.preRollback()
        finally:
            if state is not None:
                lent.close(state)
            close_bolt(bolt)

    def _open(self, version: Version | None) -> StateStore:
        context = self._deployment.state_context(self._order.order, self._component, self._task, version=version)
        return self._provider.newState(self._deployment.namespace(self._component, self._task), context)

    def _wrapped(self, name: str):  # type: ignore[no-untyped-def]
        return hook(self._component, self._task, name, self._order.attempt.txid)
