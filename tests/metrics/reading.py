"""Reads values out of what a query or a tester says of its metrics."""

from collections.abc import Mapping
from typing import Any


def value(metrics: list[dict[str, Any]], name: str, **labels: str) -> Any:
    """The value of the one series with these labels."""
    (found,) = [each["value"] for each in metrics if each["name"] == name and labels.items() <= each["labels"].items()]
    return found


def values(metrics: list[dict[str, Any]], name: str, *labels: str) -> Mapping[Any, Any]:
    """The values of all series of a metric, by some of their labels."""
    found = {
        tuple(each["labels"][label] for label in labels): each["value"] for each in metrics if each["name"] == name
    }
    return {key[0] if len(labels) == 1 else key: number for key, number in found.items()}
