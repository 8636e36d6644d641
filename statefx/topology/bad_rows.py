"""Bolts that go on after a row of which they raise an error: what they need, and what they can't be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from statefx.errors import TopologyError
from statefx.operators.bolts import Bolt, Stateful, may_hold
from statefx.operators.dead_letters import DEAD_LETTER, DEAD_LETTERS, ReplayDeadLetters
from statefx.operators.joins import Wired
from statefx.operators.json_values import refuse_keys
from statefx.operators.tracked_spouts import Spout
from statefx.operators.windows import WindowedBolt
from statefx.topology.graph import Component, ComponentKind, Edge, OnError
from statefx.topology.groupings import Promise


def mode_of(id: str, bolt: Bolt, given: Any) -> OnError:
    """Return what ``onError=`` says; TopologyError if it is no such word, or the bolt can't do it."""
    if given not in list(OnError):
        raise TopologyError(
            f"bolt {id!r}: onError is one of {', '.join(repr(str(one)) for one in OnError)}, not {given!r}",
            component=id,
        )
    mode = OnError(given)
    if mode is OnError.FAIL:
        return mode
    name = type(bolt).__name__
    if isinstance(bolt, WindowedBolt) and mode is OnError.QUARANTINE_KEY:
        why = (
            f"{name} has windows, and rows that are held back would come late for them: say "
            f'onError="{OnError.DEAD_LETTER}", which holds back no later rows'
        )
    elif isinstance(bolt, Wired):
        why = f"{name} is ready-made, and runs no code of yours: leave out onError"
    elif bolt.combines:
        why = (
            f"{name} has its input added up before it is sent, so that an error is one of a sum of many rows: leave "
            "out the combiner, or let a bolt before it look at the rows, and have the onError"
        )
    elif mode is OnError.QUARANTINE_KEY and not isinstance(bolt, Stateful):
        why = (
            f"{name} keeps no state, in which the keys in quarantine have to be: derive it from StatefulBolt, or say "
            f'onError="{OnError.DEAD_LETTER}", which holds back no later rows'
        )
    else:
        return mode
    raise TopologyError(f"bolt {id!r} can't have onError={str(mode)!r}: {why}", component=id)


def with_dead_letters(id: str, mode: OnError, streams: Mapping[str, pa.Schema]) -> Mapping[str, pa.Schema]:
    """Return the streams of a bolt with that of its dead letters, if it has some."""
    if not mode.writes_letters:
        return streams
    if DEAD_LETTER in streams:
        raise TopologyError(
            f"bolt {id!r}: the stream {DEAD_LETTER!r} is in outputFields too, and with onError={str(mode)!r} statefx "
            "emits it: take it out there",
            component=id,
        )
    return {**streams, DEAD_LETTER: DEAD_LETTERS}


def check_bad_rows(components: Mapping[str, Component], edges: Sequence[Edge]) -> None:
    """Refuse dead letters that nobody would read or that can't be written, and bolts that ack by hand."""
    _check_quarantines(components, edges)
    tracked = any(isinstance(one.operator, Spout) for one in components.values())
    for one in components.values():
        if one.kind is not ComponentKind.BOLT or one.on_error is OnError.FAIL:
            continue
        id = one.id
        if tracked and may_hold(one.operator):
            raise TopologyError(
                f"bolt {id!r} can't have onError={str(one.on_error)!r}: {type(one.operator).__name__} acks its tuples "
                "itself, and an ack can't be undone with the rest of a call. Derive it from BasicBolt or StatefulBolt, "
                "which ack what has been dealt with; or leave out onError",
                component=id,
            )
        if not one.on_error.writes_letters:
            continue
        for edge in edges:
            if edge.target == id and not edge.grouping.broadcast:
                refuse_keys(components[edge.source].outputs[edge.stream], f"dead letters of bolt {id!r}")
        if not any((edge.source, edge.stream) == (id, DEAD_LETTER) for edge in edges):
            raise TopologyError(
                f"bolt {id!r} has onError={str(one.on_error)!r}, and nobody reads its dead letters: rows would be "
                f"lost. Let a sink or a bolt read them, as in "
                f'.shuffleGrouping({id!r}, stream="{DEAD_LETTER}"). If they may be lost: onError="skip"',
                component=id,
            )


def _check_quarantines(components: Mapping[str, Component], edges: Sequence[Edge]) -> None:
    """Refuse keys in quarantine where rows have no key, and letters that are replayed without their numbers."""
    for edge in edges:
        target = components[edge.target]
        holds = target.on_error is OnError.QUARANTINE_KEY
        operator = components[edge.source].operator
        if isinstance(operator, ReplayDeadLetters) and operator.quarantined is not holds:
            why = 'with quarantined=True, and only a bolt with onError="quarantineKey" can read it: leave that out'
            if holds:
                why = (
                    "without quarantined=True: the bolt would take the rows for later ones of their keys, and hold "
                    "them back. Say ReplayDeadLetters(..., quarantined=True)"
                )
            raise TopologyError(
                f"{target.kind} {target.id!r} reads from {edge.source!r}, a ReplayDeadLetters {why}",
                component=target.id,
            )
        if holds and not edge.grouping.broadcast and edge.grouping.promise is not Promise.KEY:
            raise TopologyError(
                f"bolt {target.id!r} can't have onError={str(target.on_error)!r}: it reads {edge.source!r} by "
                f"{edge.grouping}, and only the fields of a fieldsGrouping tell which rows belong to one key. Group by "
                f'the key\'s fields, or say onError="{OnError.DEAD_LETTER}", which holds back no later rows',
                component=target.id,
            )
