"""Errors of a bolt's own code: they name bolt and hook and show the user's lines, not ours."""

from __future__ import annotations

import os
import sysconfig
import traceback

from statefx.errors import BoltError
from statefx.operators.context import DRIVER

_SHOWN = 2000
_TRACEBACK_SHOWN = 20_000

_OURS = (
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
    sysconfig.get_path("stdlib") + os.sep + "contextlib",
    "<frozen",
)
_PACKAGES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))


def bolt_error(error: BaseException, component: str, task: int, name: str, txid: int, kind: str = "bolt") -> BoltError:
    """Build the error that a failing hook becomes; its text, one line, can be found again in a Spark stack trace."""
    where = "on the driver" if task == DRIVER else f"task {task}"
    # Rows are taken, and sent on, when `emit` is called or later: it is none of the hooks.
    what = "collector.emit" if name == "emit" else f"hook {name}"
    cause = cause_of(error)
    return BoltError(
        f"{kind} {component!r}, {where}, {what}, transaction {txid}: {cause}",
        component=component,
        task=task,
        hook=name,
        txid=txid,
        cause=cause,
        traceback=user_traceback(error),
    )


def cause_of(error: BaseException) -> str:
    """Return an error as one line: its type, its text, and the line of the user's in which it arose."""
    # "BoltError" twice in one line says nothing: what a collector refuses is one already
    text = _text(error) if type(error) is BoltError else f"{type(error).__name__}: {_text(error)}"
    return _printable(" | ".join(text.splitlines())[:_SHOWN] + place_of(error))


def user_traceback(error: BaseException) -> str:
    """Return the traceback of `error` as Python prints it, with causes, but without the frames of statefx."""
    found = traceback.TracebackException.from_exception(error)
    _leave_out_ours(found)
    text = _printable("".join(found.format()))
    return text if len(text) <= _TRACEBACK_SHOWN else "..." + text[-_TRACEBACK_SHOWN:]  # the end says most


def _printable(text: str) -> str:
    """Write half a surrogate pair as an escape: it can't be written to a log, nor sent to another process."""
    return text.encode("utf-8", "backslashreplace").decode()


def _leave_out_ours(found: traceback.TracebackException | None) -> None:
    while found is not None:
        found.stack = traceback.StackSummary.from_list([frame for frame in found.stack if _of_users(frame)])
        if found.__cause__ is not None and found.__context__ is not None:
            _leave_out_ours(found.__context__)
        found = found.__cause__ or found.__context__


def place_of(error: BaseException) -> str:
    """Return the user's line in which an error arose, in brackets, or "" if in none."""
    frames = [frame for frame in reversed(traceback.extract_tb(error.__traceback__)) if _of_users(frame)]
    # a bolt may be installed like any package: only if no line lies outside
    for frame in [*(each for each in frames if not each.filename.startswith(_PACKAGES)), *frames]:
        return f" ({frame.filename}:{frame.lineno}, in {frame.name})"
    return ""


def _of_users(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(_OURS) and f"{os.sep}statefx_" not in frame.filename


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - code of the user's
        return f"(its text can't be shown: {type(second).__name__})"
