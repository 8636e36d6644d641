"""Whether a topology may go on with the checkpoint that it was given; asked before anything is changed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from statefx.errors import CheckpointMismatchError, ConfigError, StatefxError
from statefx.log.entries import FOLDER as LOG
from statefx.log.location import Folders
from statefx.log.log import read_state
from statefx.plan.levels import name_shown
from statefx.protocol.log_state import LogState
from statefx.protocol.topology_identity import KeyFields, StatefulIdentity, TopologyIdentity
from statefx.state.registry import name_of
from statefx.storage import is_remote

logger = logging.getLogger("statefx")


Adopt = str | Iterable[str] | None
"""The words of `adopt`: ``"move"``, ``"fork"``, ``"takeover"``, or one of the first two together with the last."""

NOTHING_ADOPTED: frozenset[str] = frozenset()

_ADOPTIONS = ("move", "fork", "takeover")


def adoptions(adopt: Adopt) -> frozenset[str]:
    """Return the words of `adopt`; ConfigError if one is unknown, or they contradict each other."""
    given = NOTHING_ADOPTED if adopt is None else [adopt] if isinstance(adopt, str) else adopt
    words = frozenset(given if isinstance(given, Iterable) else [given])
    if not words.issubset(_ADOPTIONS):
        raise ConfigError(
            f"adopt must be 'move', 'fork' or 'takeover', or a list such as ['fork', 'takeover'], got {adopt!r}"
        )
    if {"move", "fork"} <= words:
        raise ConfigError(
            "adopt says 'move' and 'fork': a checkpoint was moved (nothing is left where it was), or is a copy"
        )
    return words


def forks(found: LogState, folders: Folders, adopt: frozenset[str]) -> bool:
    """Return whether this start makes a checkpoint of its own out of a copy.

    ``adopt="fork"`` may stay in a program: a checkpoint that became a fork before, and was last run in this very
    folder, goes on. One that never did becomes one here as well: a copy may be mounted at the path of its original.
    """
    first = found.location != folders.location or found.fork is None
    return "fork" in adopt and found.generation > 0 and first


def warn_of_fork(found: LogState, folders: Folders, adopt: frozenset[str]) -> None:
    """Log that ``adopt="fork"`` changes nothing, which only the caller can know to be right."""
    if "fork" in adopt and found.generation and not forks(found, folders, adopt):
        logger.warning(
            "adopt='fork' changes nothing: the checkpoint in %s became a fork in an earlier start, and goes on as "
            "that. If it is a copy of that fork at the same path, stop it, and start it at another path",
            folders.location,
        )


def check_adoption(
    found: LogState, wanted: TopologyIdentity | None, folders: Folders, adopt: frozenset[str], *, shared: bool
) -> None:
    """Refuse a checkpoint that this topology can't go on with; changes nothing.

    `wanted` is of the topology, None: a tool asks, which has none, and can't adopt. `shared` says whether its state
    lives outside the checkpoint.
    """
    if not found.generation:  # new, or its first driver died before it had taken a generation
        return
    if wanted is not None:
        _check_identity(found.topology, wanted, folders.location)
    here = found.location == folders.location
    move, fork = (_with_takeover(word, adopt) for word in ("move", "fork"))
    if shared and forks(found, folders, adopt):  # its namespaces would begin empty: a copy's files hold nothing (1.1)
        go_on = "start without 'fork'" if here else f"delete or rename {found.location} and start with adopt={move}"
        raise CheckpointMismatchError(
            f"the checkpoint in {folders.location} can't be forked: its state lives outside the folder, where both "
            f"would change it. If it is to go on in place of the original, {go_on}; else start with a new "
            "checkpointLocation",
            location=folders.location,
        )
    if here:
        return
    # Two lives of one lineage would each commit transactions of the same numbers, under generations of the same
    # numbers: nothing that is kept by these, here or in a server, could tell them apart. So somebody has to say which.
    if wanted is None and not adopt:
        raise CheckpointMismatchError(
            f"the checkpoint in {folders.location} was last run in {found.location}, and can't be changed before a "
            "topology goes on with it here. If it was moved, and nothing is left there, start its topology with "
            "submit(..., adopt='move'); if it is a copy, with submit(..., adopt='fork'). Without a start: "
            "Checkpoint.restore with to= makes a copy that is a checkpoint of its own, and can be changed",
            location=folders.location,
            last=found.location,
        )
    if not adopt & {"move", "fork"}:
        raise CheckpointMismatchError(
            f"the checkpoint in {folders.location} was last run in {found.location}. If it was moved, and nothing is "
            f"left there, start with adopt={move}; if it is a copy, start with adopt={fork}, and it goes its own way, "
            "whether the original runs on or not",
            location=folders.location,
            last=found.location,
        )
    if "move" in adopt and _is_home(Folders(found.location), found.lineage, folders):
        copied = "" if shared else f"; if this is a copy that is to go its own way, start with adopt={fork}"
        raise CheckpointMismatchError(
            f"the checkpoint in {folders.location} was not moved: it is still in {found.location}, where it was last "
            f"run, and two that go on as one would mix up their state. If this one is to go on in its place, delete or "
            f"rename {found.location} first{copied}",
            location=folders.location,
            other=found.location,
        )


def _with_takeover(word: str, adopt: frozenset[str]) -> str:
    """Return the `adopt` to write: `word`, and 'takeover' if that was given."""
    return str([word, "takeover"]) if "takeover" in adopt else repr(word)


def _is_home(other: Folders, lineage: str, folders: Folders) -> bool:
    """Return whether `other` holds the lineage too, and a start there would succeed."""
    if is_remote(other.location) and _is_gone(other, folders):
        return False
    try:
        first = next(iter(folders.storage.list(LOG))).name
        if folders.storage.shares(first, other.storage):  # mounted at two places
            return False
        state = read_state(other.storage)
    except (OSError, StatefxError):  # not there, out of sight, or damaged: it can't be run as it is
        return False
    # A copy that was never run where it lies names another location: there it would be refused without `adopt`.
    return state.lineage == lineage and state.location == other.location


def _is_gone(other: Folders, folders: Folders) -> bool:
    """Return whether there is no checkpoint in a store; an unreadable one may be there, and at work."""
    try:
        return next(iter(other.storage.list(LOG)), None) is None
    except (OSError, ImportError, StatefxError) as error:
        raise CheckpointMismatchError(
            f"whether the checkpoint in {folders.location} was moved is unknown: {other.location}, where it was "
            f"last run, can't be read ({error}). Start where that can be read, with the extra 's3'; or with "
            "adopt='fork', and it goes its own way",
            location=folders.location,
            other=other.location,
        ) from error


def _check_identity(found: TopologyIdentity, wanted: TopologyIdentity, location: str) -> None:
    """Refuse a topology that is another than the checkpoint's, or keeps or routes its state in another way."""
    for what, was, becomes in (
        ("topology", found.name, wanted.name),
        ("kind of input", found.input, wanted.input),
    ):
        if was != becomes:
            raise CheckpointMismatchError(
                f"the checkpoint in {location} is of {what} {was!r}, this one has {becomes!r}: "
                f"go back to {was!r}, or give each its own checkpointLocation. A new one has empty state, and reads "
                "the input from its beginning: give its sinks new targets too",
                location=location,
                found=was,
                wanted=becomes,
            )
    _check_streams(found.streams, wanted.streams, location)
    for component, before in found.stateful.items():
        now = wanted.stateful.get(component)
        if now is None:  # a bolt that is new starts with empty state; what one that is gone has kept would be lost
            raise CheckpointMismatchError(
                f"the checkpoint in {location} holds {_held_by(component, before)}, or start with a new "
                "checkpointLocation",
                location=location,
                component=component,
            )
        _check_stateful(component, before, now, location)
    # Who gives the acker up, by drop=['__acker'], gives up all its trees.
    has_trees = any(bolt.layout is not None and bolt.layout.form == "trees" for bolt in found.stateful.values())
    lacking = sorted(found.tracked.keys() - wanted.tracked.keys())
    if lacking and has_trees:
        spout = lacking[0]
        raise CheckpointMismatchError(
            f"bolts may hold messages of spout {spout!r} in the checkpoint in {location}, and this topology has no "
            "Spout of that id: under another id, messages that come again would be taken for new, and counted twice. "
            f"If it has another name now, start with rename={{{spout!r}: its name}}; if it is gone, with "
            f"drop=[{spout!r}], and what has its id now needs another one; else with a new checkpointLocation",
            location=location,
            component=spout,
        )


def _check_streams(found: Sequence[str], wanted: Sequence[str], location: str) -> None:
    """Refuse other streaming DataFrames; the order in which they are declared has no part in it (rule 3.15)."""
    gone, new = ([one for one in these if one not in others] for these, others in ((found, wanted), (wanted, found)))
    if not gone and not new:
        return
    steps = []
    if gone:
        steps.append(f"bring back setStream({gone[0]!r}, ...)")
        steps += [f"if it has another id now, start with rename={{{gone[0]!r}: its id}}"] if new else []
    if new:
        steps.append(f"read {new[0]!r} in a topology of its own" + (" if it is another stream" if gone else ""))
    before, now = (", ".join(map(repr, streams)) for streams in (found, wanted))
    raise CheckpointMismatchError(
        f"the checkpoint in {location} is of a topology with the streaming DataFrames {before}, this one has {now}: "
        f"how far each was read is known together, and none can be added or taken away: {'; '.join(steps)}; or "
        "start with a new checkpointLocation (and empty state)",
        location=location,
        component=(gone or new)[0],
        found=list(found),
        wanted=list(wanted),
    )


def _held_by(component: str, known: StatefulIdentity) -> str:
    """Return what a component that is gone has kept, and how to bring it back; users have not put in all of them."""
    form = "" if known.layout is None else known.layout.form
    if form == "trees":
        return (
            "messages that bolts have held over transactions (component '__acker'), and no bolt of this topology can "
            "hold any: bring back a plain Bolt behind a Spout, with topology.acker.executors above 0"
        )
    if form == "ids":
        spout = name_shown(component)
        return (
            f"ids of messages of spout {spout!r} that may come again: give setSpout({spout!r}, ...) its dedup again; "
            f"if it has another name now, start with rename={{{spout!r}: its name}}; to give the ids up, with "
            f"drop=[{component!r}]"
        )
    if form == "calls":
        return (
            f"tuples that may wait for another call of bolt {component!r}, which the topology no longer has, or which "
            f"makes none again: give it its retries back until none waits; to give the tuples up, with "
            f"drop=[{component!r}]"
        )
    return (
        f"state of bolt {component!r}, which the topology no longer has (or which is no longer stateful): bring it "
        f"back; if it has another name now, start with rename={{{component!r}: its name}}; to give its state up, with "
        f"drop=[{component!r}]"
    )


_PARALLELISM = " (bolts without state, spouts and sinks may have another one than before)"


def _check_stateful(component: str, before: StatefulIdentity, now: StatefulIdentity, location: str) -> None:
    def refuse(what: str, was: Any, becomes: Any, remedy: str) -> CheckpointMismatchError:
        named = f"bolt {component!r}"
        if (spout := name_shown(component)) != component:
            named = f"spout {spout!r}, with dedup,"
        return CheckpointMismatchError(
            f"{named} {what}: {remedy}, or start with a new checkpointLocation",
            location=location,
            component=component,
            found=was,
            wanted=becomes,
        )

    if before.provider != now.provider:
        # Only now are their names looked up: that reads a file of every package that is installed, at every start.
        former, new = name_of(before.provider), name_of(now.provider)
        text = f"has provider {new!r}, the checkpoint in {location} was written with {former!r}"
        move = f"move the state with Checkpoint(location).migrate({new!r})"
        raise refuse(text, former, new, f"go back to {former!r} (topology.state.provider), {move}")
    for what, was, becomes, more in (
        ("parallelism", before.parallelism, now.parallelism, _PARALLELISM),
        ("codec", before.codec, now.codec, ""),
        (
            "windows",
            before.windows or now.windows,
            now.windows or (before.windows and "none"),
            ", or give the others to a bolt of a new name",
        ),
    ):
        if was != becomes:
            text = f"has {what} {becomes!r}, the checkpoint in {location} was written with {was!r}"
            if what == "parallelism":
                more += (
                    f"; start with rescale=True, or call Checkpoint(location).rescale({{{component!r}: {becomes}}}), "
                    "and state is given to these tasks"
                )
            raise refuse(text, was, becomes, f"go back to {was!r}{more}")
    if before.parallelism > 1:  # a single task has every key, however rows come to it
        if before.routing != now.routing:
            was, becomes = _routing_text(before.routing), _routing_text(now.routing)
            raise refuse(_rerouted(becomes, location, was), before.routing, now.routing, f"go back to {was}")
        replaced = _replaced_fields(before.key_fields, now.key_fields)
        if replaced is not None:
            was, becomes = replaced
            renamed = "a field that was only renamed needs a name that the stream did not have before"
            raise refuse(_rerouted(becomes, location, was), was, becomes, f"go back to {was} ({renamed})")
    if refused := _refused_version(component, before.state_version, now, location):
        raise refuse(refused[0], before.state_version, now.state_version, refused[1])


def _refused_version(component: str, older: int, now: StatefulIdentity, location: str) -> tuple[str, str] | None:
    """Return what is wrong with a stateVersion, and the remedy, or None if it is right."""
    newer = now.state_version
    if older > newer:
        remedy = (
            "run the version of the topology that wrote it; or, with the code of that version, call "
            f"Checkpoint(location).downgrade({component!r}, bolt, {newer}), whose downgradeState writes values as "
            f"{newer} reads them; or restore a savepoint of that time"
        )
        return f"has stateVersion {newer}, the checkpoint in {location} was written by a newer version, {older}", remedy
    if older < newer and not now.upgrades:
        return (
            f"has stateVersion {newer}, the checkpoint in {location} was written with {older}",
            f"declare migrateState(self, version, key, value), which is given values of version {older} and before",
        )
    if older < newer and now.migrates_keys:  # who starts has seen to it that none are: another one was quicker
        return (
            f"has stateVersion {newer} and migrateKey, and the keys in {location} are of version {older}",
            "another one has changed the checkpoint at the same time: start again",
        )
    return None


def same_tasks(before: StatefulIdentity, now: StatefulIdentity) -> bool:
    """Return whether rows of a key go to the same task as before, if there are as many."""
    return before.routing == now.routing and same_keys(before, now)


def same_keys(before: StatefulIdentity, now: StatefulIdentity) -> bool:
    """Return whether rows have the keys that they had before: the fields that they are grouped by."""
    were, are = ([each for each in one.routing if each != ("broadcast",)] for one in (before, now))
    return were == are and _replaced_fields(before.key_fields, now.key_fields) is None


def _rerouted(becomes: str, location: str, was: str) -> str:
    return (
        f"gets its rows by {becomes}, the checkpoint in {location} was written with {was}, so that keys would go "
        "to other tasks than those that hold their state"
    )


def _routing_text(routing: Iterable[Iterable[str]]) -> str:
    shown = [f"{kind}({', '.join(types)})" if types else kind for kind, *types in routing]
    return " and ".join(shown) or "nothing"


def _replaced_fields(before: Iterable[KeyFields], now: Iterable[KeyFields]) -> tuple[str, str] | None:
    """Return a grouping whose fields were replaced by others, as it was and as it is; None if there is none.

    Only inputs that are grouped both before and now can tell: a new input brings its own rows, one that is gone none.
    """
    for old in before:
        same_input = [each for each in now if _input(each) == _input(old)]
        known = [each.fields for each in before if _input(each) == _input(old)]
        added = [each for each in same_input if each.fields not in known]
        if not added or old.fields in [each.fields for each in same_input]:
            continue
        if not any(_is_renamed(old, new) for new in added):
            was, becomes = (f"{old.grouping}({', '.join(each.fields)})" for each in (old, added[0]))
            return f"{was} of stream {old.stream!r} of {old.source!r}", becomes
    return None


def _input(key: KeyFields) -> Sequence[str]:
    return name_shown(key.source), key.stream, key.grouping  # with dedup or without


def _is_renamed(old: KeyFields, new: KeyFields) -> bool:
    """Return whether fields were only renamed: the stream has no longer the old name, and did not have the new one."""
    pairs = zip(old.fields, new.fields, strict=True)  # equal lengths: the routing has matched the types
    return all(
        was == becomes or (was not in new.stream_fields and becomes not in old.stream_fields) for was, becomes in pairs
    )
