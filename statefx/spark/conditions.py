"""What a condition on columns says of each of them, read from the JSON that Spark writes of its expressions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

from statefx.admin.narrowing import Comparison

_SIGNS = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "In": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    "string": str,
    "double": float,
    "date": date.fromisoformat,
}
"""Of constants, by Spark's name of their type. That of a timestamp has no time zone, that of bytes no bytes."""

_Tree = tuple[Mapping[str, Any], Sequence[Any]]
"""An expression, and those in it."""


def comparisons(condition: str) -> list[Comparison]:
    """Return comparisons of columns with constants that are all true wherever the condition is; others are left out."""
    return list(_compared(_tree(iter(json.loads(condition)))))


def _tree(nodes: Iterator[Mapping[str, Any]]) -> _Tree:
    """Read an expression from a list in which each stands before those in it."""
    node = next(nodes)
    return node, [_tree(nodes) for _ in range(node["num-children"])]


def _compared(tree: _Tree) -> Iterator[Comparison]:
    node, inner = tree
    kinds = [_name(each) for each, _ in inner]
    if _name(node) == "And":
        for each in inner:
            yield from _compared(each)
    elif sign := _SIGNS.get(_name(node)):
        if kinds == ["Literal", "AttributeReference"]:
            sign, inner, kinds = _TURNED[sign], inner[::-1], kinds[::-1]
        if kinds[0] == "AttributeReference" and set(kinds[1:]) == {"Literal"}:
            with suppress(KeyError, ValueError):  # a constant of another type, or a date that Python does not have
                constants = [_constant(each) for each, _ in inner[1:]]
                yield Comparison(inner[0][0]["name"], sign, tuple(constants))


def _constant(literal: Mapping[str, Any]) -> Any:
    read = _READERS[literal["dataType"]]
    return None if literal["value"] is None else read(literal["value"])


def _name(node: Mapping[str, Any]) -> str:
    return str(node["class"]).rpartition(".")[2]
