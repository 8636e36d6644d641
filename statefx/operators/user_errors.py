"""Errors of a bolt's own code: they name bolt and hook and show the user's lines, not ours."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from types import FrameType

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
    text = "\n".join((text, *map(str, getattr(error, "__notes__", ()))))
    return shortened(" | ".join(text.splitlines())) + _printable(place_of(error))


def shortened(text: str) -> str:
    """Return as much of a text of any length as fits into a message to the driver, and into its log."""
    return _printable(text[:_SHOWN])


def user_traceback(error: BaseException) -> str:
    """Return the traceback of `error` as Python prints it, with causes, but without the frames of statefx."""
    found = traceback.TracebackException.from_exception(error)
    _leave_out_ours(found)
    text = _printable("".join(found.format()))
    return text if len(text) <= _TRACEBACK_SHOWN else "..." + text[-_TRACEBACK_SHOWN:]  # the end says most


_TRACEBACK = "Traceback (most recent call last):"
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_TYPE = re.compile(r"[A-Za-z_][\w.]*")


def frames_of(text: str) -> str:
    r"""Return a traceback of `user_traceback` without the texts of its exceptions, which may quote values.

    >>> print(frames_of(f"{_TRACEBACK}\n  File 'a.py', line 1, in f\n    g(n)\nValueError: no\n such card: 4711"))
    Traceback (most recent call last):
      File 'a.py', line 1, in f
        g(n)
    ValueError
    """
    kept: list[str] = []
    within = False
    for line in text.splitlines():
        if line == _TRACEBACK:
            kept, within = [*kept, line], True
        elif line in _LINKS:
            kept, within = [*kept, "", line, ""], False
        elif within and line.startswith("  "):
            kept.append(line)
        elif within:  # the exception; what follows is more of its text
            within = False
            kept += [found[0]] if (found := _TYPE.match(line)) else []
    return "\n".join(kept)


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
    return _place_in(traceback.extract_tb(error.__traceback__))


def place_of_frames(frames: Iterable[FrameType]) -> str:
    """Return the last of these frames that is of the user's code as `place_of` does; the outermost come first."""
    return _place_in(traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames))


def _place_in(stack: traceback.StackSummary) -> str:
    frames = [frame for frame in reversed(stack) if _of_users(frame)]
    # a bolt may be installed like any package: only if no line lies outside
    for frame in [*(each for each in frames if not each.filename.startswith(_PACKAGES)), *frames]:
        return f" ({frame.filename}:{frame.lineno}, in {frame.name})"
    return ""


def user_stack(frame: FrameType) -> str:
    """Return where a thread stands, as Python prints it: in code of the user's, or in any if it is in none of that."""
    frames = [each for each in traceback.extract_stack(frame) if _of_users(each)]
    own = [each for each in frames if not each.filename.startswith(_PACKAGES)]
    return "".join(traceback.format_list(own or frames)).rstrip()


def _of_users(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(_OURS) and f"{os.sep}statefx_" not in frame.filename


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - code of the user's
        return f"(its text can't be shown: {type(second).__name__})"
