"""Whether a topology can go on with the state of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from statefx.errors import CheckpointMismatchError
from statefx.state.encoding.codec import StandardCodec
from statefx.state.registry import name_of

CODECS = {"msgpack": StandardCodec.name}
"""Former names of codecs in checkpoints."""


def check_identity(found: Mapping[str, Any], wanted: Mapping[str, Any], location: str) -> None:
    """Refuse a topology that is another than the checkpoint's, or keeps or routes its state in another way.

    Parameters
    ----------
    found, wanted : Mapping[str, Any]
        What the log has, and what this topology has (`checkpoint.identity`).
    location : str
        Of the checkpoint, for messages.

    Raises
    ------
    CheckpointMismatchError
        Names both sides and the remedy.
    """
    for what, word in (("name", "topology"), ("source", "kind of input")):
        if found[what] != wanted[what]:
            raise CheckpointMismatchError(
                f"the checkpoint in {location} is of {word} {found[what]!r}, this one has {wanted[what]!r}: "
                "give each its own checkpointLocation",
                location=location,
                found=found[what],
                wanted=wanted[what],
            )
    for component, before in found["stateful"].items():
        now = wanted["stateful"].get(component)
        if now is None:
            raise CheckpointMismatchError(
                f"the checkpoint in {location} holds state of bolt {component!r}, which the topology no longer has "
                "(or which is no longer stateful): bring it back, or start with a new checkpointLocation",
                location=location,
                component=component,
            )
        _check_component(component, before, now, location)


def _check_component(component: str, before: Mapping[str, Any], now: Mapping[str, Any], location: str) -> None:
    def refused(what: str, found: Any, wanted: Any, remedy: str) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"bolt {component!r} {what}: {remedy}, or start with a new checkpointLocation",
            location=location,
            component=component,
            found=found,
            wanted=wanted,
        )

    for key in ("parallelism", "provider", "codec"):
        found, wanted = before[key], now[key]
        if key == "codec":
            found, wanted = CODECS.get(found, found), CODECS.get(wanted, wanted)
        if found != wanted:
            was, move = found, ""
            if key == "provider":
                was, wanted = name_of(found), name_of(wanted)
                move = f" (topology.state.provider), move the state with statefx.migrate(..., to={wanted!r})"
            what = f"has {key} {wanted!r}, the checkpoint in {location} was written with {was!r}"
            raise refused(what, was, wanted, f"go back to {was!r}{move}")
    if before["parallelism"] > 1:
        found, wanted = before.get("keys"), now.get("keys")  # checkpoints of earlier releases don't tell
        if found is not None and wanted is not None and found != wanted:
            was, becomes = _ways(found), _ways(wanted)
            raise refused(_rerouted(becomes, location, was), found, wanted, f"go back to {was}")
        others = _other_fields(before.get("fields") or (), now.get("fields") or ())
        if others is not None:
            was, becomes = others
            renamed = "a field that was only renamed needs a name that the stream did not have before"
            raise refused(_rerouted(becomes, location, was), was, becomes, f"go back to {was} ({renamed})")
    found, wanted = before["stateVersion"], now["stateVersion"]
    if found > wanted:
        what = f"has stateVersion {wanted}, the checkpoint in {location} was written by a newer version, {found}"
        raise refused(what, found, wanted, "run the version of the topology that wrote it")
    if found < wanted and not now.get("migrates"):
        what = f"has stateVersion {wanted}, the checkpoint in {location} was written with {found}"
        remedy = f"declare migrateState(self, version, key, value), which is given values of version {found} and before"
        raise refused(what, found, wanted, remedy)


def _rerouted(becomes: str, location: str, was: str) -> str:
    return (
        f"gets its rows by {becomes}, the checkpoint in {location} was written with {was}, so that keys would go "
        "to other tasks than those that hold their state"
    )


def _ways(keys: Iterable[Iterable[str]]) -> str:
    """Show how rows are routed: ``fields(string, int)``."""
    shown = [f"{kind}({', '.join(types)})" if types else kind for kind, *types in keys]
    return " and ".join(shown) or "nothing"


def _other_fields(before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]]) -> tuple[str, str] | None:
    """Return a grouping whose fields were replaced by others, as it was and as it is; None if there is none.

    A field is only renamed if its stream no longer has the old name, and did not have the new one.
    """
    for *way, names, had in before:
        known = [each[3] for each in before if each[:3] == way]
        there = [each for each in now if each[:3] == way]
        new = [each for each in there if each[3] not in known]
        if not new or names in [each[3] for each in there]:
            continue
        if not any(_renamed(names, each[3], had, each[4]) for each in new):
            source, stream, kind = way
            was, becomes = (f"{kind}({', '.join(each)})" for each in (names, new[0][3]))
            return f"{was} of stream {stream!r} of {source!r}", becomes
    return None


def _renamed(old: Sequence[str], new: Sequence[str], had: Sequence[str], has: Sequence[str]) -> bool:
    pairs = zip(old, new, strict=True)  # as many: their types are the same
    return all(was == now or (was not in has and now not in had) for was, now in pairs)
