"""The names that statefx calls on a bolt, and the refusal of names that only look like them."""

from __future__ import annotations

import inspect
from abc import ABC
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Generic

CALLED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "open": ("context",),
        "execute": ("tup", "collector"),
        "executeBatch": ("batch", "collector"),
        "finishBatch": ("collector",),
        "close": (),
        "initState": ("state",),
        "prePrepare": ("txid",),
        "preCommit": ("txid",),
        "preRollback": (),
        "migrateState": ("version", "key", "value"),
    }
)
"""Hooks that are methods, with the arguments they are called with."""

READ: tuple[str, ...] = ("outputFields", "stateVersion")
"""Hooks that are attributes."""

HOOKS: tuple[str, ...] = (*CALLED, *READ)

OWNERS: Mapping[str, str] = MappingProxyType(
    {"finishBatch": "BatchBolt"}
    | dict.fromkeys(("initState", "prePrepare", "preCommit", "preRollback", "stateVersion", "migrateState"), "Stateful")
)
"""Hooks that only one kind of bolt has."""

STORM: Mapping[str, str] = MappingProxyType(
    {"declareoutputfields": "outputFields", "prepare": "open", "cleanup": "close"}
)
"""Storm's Java names, lower case, with ours."""

# Shorter hooks have too many neighbours that are words of their own ("executed", "opens").
TYPO_LENGTH_MIN = 9


def overrides(cls: type, hook: str) -> bool:
    """Tell whether `cls` has a `hook` of the user's own, and not only the one of statefx."""
    return any(hook in vars(owner) for owner in _foreign(cls))


def check_hooks(cls: type) -> None:
    """Refuse a bolt class whose hooks would never be called, or not as it expects.

    Called when the class is created.

    Raises
    ------
    TypeError
        A name that is nearly a hook's, a hook of another kind of bolt, other arguments than the hook is called
        with, or a generator or coroutine, whose body would never run.
    """
    for owner in _foreign(cls):
        for name, value in vars(owner).items():
            if name.startswith("_"):
                continue
            if name not in HOOKS:
                _check_near_miss(cls, name)
                continue
            if not any(name in vars(own) for own in _own(cls)):
                raise TypeError(
                    f"{cls.__name__}.{name} would never be called: {name} is a hook of {OWNERS[name]}. "
                    f"Derive {cls.__name__} from {OWNERS[name]}, or give the method another name."
                )
            if inspect.isfunction(value) and name in CALLED:
                _check_signature(cls, name, value)


def _own(cls: type) -> Iterator[type]:
    """Yield the classes of `cls` that statefx wrote."""
    return (owner for owner in cls.__mro__ if owner.__module__ == f"{__package__}.bolts")


def _foreign(cls: type) -> Iterator[type]:
    """Yield the classes of `cls` that users wrote."""
    plain = {object, ABC, Generic, *_own(cls)}
    return (owner for owner in cls.__mro__ if owner not in plain)


def _check_near_miss(cls: type, name: str) -> None:
    plain = name.replace("_", "").lower()
    hook = STORM.get(plain)
    if hook is None:
        hook = next((known for known in HOOKS if _alike(plain, known.lower())), None)
    if hook is not None:
        raise TypeError(
            f"{cls.__name__}.{name} would never be called: the hook is {hook}. "
            f"Rename {name} to {hook}, or give it a name that is not mistaken for it."
        )


def _alike(plain: str, hook: str) -> bool:
    return plain == hook or (len(hook) >= TYPO_LENGTH_MIN and _one_edit_apart(plain, hook))


def _one_edit_apart(left: str, right: str) -> bool:
    """Tell whether one inserted, lost, changed or swapped letter makes `left` into `right`."""
    if abs(len(left) - len(right)) > 1:
        return False
    start = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    left, right = left[start:], right[start:]
    swapped = left[:2] == right[:2][::-1] and left[2:] == right[2:]
    return left[1:] == right or left == right[1:] or left[1:] == right[1:] or swapped


def _check_signature(cls: type, name: str, function: object) -> None:
    arguments = CALLED[name]
    expected = f"def {name}({', '.join(('self', *arguments))})"
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise TypeError(f"{cls.__name__}.{name} would never run: it is a generator or a coroutine. Write {expected}.")
    try:
        inspect.signature(function).bind(None, *arguments)  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(f"{cls.__name__}.{name} can't be called as the hook is ({error}). Write {expected}.") from None
