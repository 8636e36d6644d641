"""Settings: Storm's names and statefx's own, read and checked in one place."""

from __future__ import annotations

import difflib
import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Self

from statefx.errors import ConfigError, TopologyError

_UNITS = {
    **dict.fromkeys(("microsecond", "us"), 1),
    **dict.fromkeys(("millisecond", "ms", "milli"), 1000),
    **dict.fromkeys(("second", "sec", "s"), 1_000_000),
    **dict.fromkeys(("minute", "min", "m"), 60_000_000),
    **dict.fromkeys(("hour", "hr", "h"), 3_600_000_000),
    **dict.fromkeys(("day", "d"), 86_400_000_000),
    **dict.fromkeys(("week", "w"), 604_800_000_000),
}
"""In microseconds."""

SPELLINGS = "'10 minutes', '10 min', '10m', '1 hour 30 minutes', '500 ms'; units are us, ms, s, min, h, days and weeks"
"""How lengths of time are written, for messages."""

NOT_WRITTEN = "or a timedelta, or a Duration such as Duration.minutes(10)"
"""In what else a length of time may be given, for messages."""

MICROSECOND = timedelta(microseconds=1)

_TERM = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time; ``"10 minutes"`` and a timedelta may stand in its place.

    Raises
    ------
    TopologyError
        It is not above 0, or finer than a microsecond.
    """

    micros: int

    def __post_init__(self) -> None:
        if isinstance(self.micros, bool) or not isinstance(self.micros, int) or self.micros < 1:
            raise TopologyError(
                f"Duration takes whole microseconds, 1 or more, not {self.micros!r}: Duration.seconds(10)"
            )

    @classmethod
    def milliseconds(cls, number: float) -> Self:
        """Return a length of `number` milliseconds."""
        return cls(round(number * 1000))

    @classmethod
    def seconds(cls, number: float) -> Self:
        """Return a length of `number` seconds."""
        return cls(round(number * 1_000_000))

    @classmethod
    def minutes(cls, number: float) -> Self:
        """Return a length of `number` minutes."""
        return cls.seconds(60 * number)

    @classmethod
    def hours(cls, number: float) -> Self:
        """Return a length of `number` hours."""
        return cls.seconds(3600 * number)

    @classmethod
    def days(cls, number: float) -> Self:
        """Return a length of `number` times 24 hours."""
        return cls.seconds(86_400 * number)

    def __str__(self) -> str:
        return f"{Decimal(self.micros).scaleb(-6):f} s" if self.micros % 1_000_000 else f"{self.micros // 1_000_000} s"


Span = Duration | timedelta | str
"""A length of time as users give it."""


def is_name(given: object) -> bool:
    """Return whether this is what `NAME` says."""
    if not isinstance(given, str) or not given.strip() or len(given) > _NAME_CHARS_MAX or "\0" in given:
        return False
    return given.encode("utf-8", "ignore").decode() == given  # not so of half a surrogate pair


def micros_of(length: object, *, zero: bool = False) -> int | None:
    """Return a length of time in microseconds; None if it is none. It is more than 0, unless `zero` is allowed.

    A text is as PySpark writes intervals, and with short units; not months and years, of which no two are equally long.

    >>> micros_of("10 minutes"), micros_of(Duration.hours(1.5)), micros_of(timedelta(seconds=1)), micros_of("500ms")
    (600000000, 5400000000, 1000000, 500000)
    """
    if isinstance(length, Duration):
        return length.micros
    if isinstance(length, timedelta):
        micros = length // MICROSECOND
    elif isinstance(length, str):
        written = _written(length)
        if written is None or written == math.inf:
            return None
        micros = round(written)
    else:
        return None
    return micros if micros > 0 or (zero and micros == 0) else None


def seconds_of(length: object, *, zero: bool = False) -> float | None:
    """Return what `micros_of` does in seconds.

    >>> seconds_of("10 minutes"), seconds_of("1.5 hours"), seconds_of("10 m"), seconds_of("1 hour 30 MINUTES")
    (600.0, 5400.0, 600.0, 5400.0)
    >>> seconds_of("interval 2 weeks"), seconds_of("500ms"), seconds_of("1 month"), seconds_of("0 s")
    (1209600.0, 0.5, None, None)
    """
    micros = micros_of(length, zero=zero)
    return None if micros is None else micros / 1e6


def _written(text: str) -> float | None:
    """Return what a text says in microseconds."""
    rest = text.strip().lower().removeprefix("interval ").strip()
    micros, found = 0.0, False
    while rest:
        term = _TERM.match(rest)
        unit = None if term is None else _UNITS.get(term[2], _UNITS.get(term[2].removesuffix("s")))
        if term is None or unit is None:
            return None
        micros, found, rest = micros + float(term[1]) * unit, True, rest[term.end() :]
    return micros if found else None


def is_count(value: object, least: int = 1) -> bool:
    """Tell whether a value is a whole number from `least`; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object, least: float = 0.0) -> bool:
    """Tell whether a value is a number from `least`; neither a bool nor NaN is one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= least


PREFIX = "topology."
INT_MAX = 2**31 - 1
NAME = "a text that is not empty, of at most 255 characters, which UTF-8 can hold and none of which is NUL"
_NAME_CHARS_MAX = 255
"""Sinks write the name of an application into databases."""

PROVIDER = re.compile(r"[A-Za-z0-9_.-]+(:[A-Za-z_]\w*)?")

WITHOUT_EFFECT = {
    "topology.ackers": "the setting is topology.acker.executors, as in newer releases of Storm",
    "topology.workers": "Spark's cluster decides how many processes there are (spark.executor.instances)",
}
"""Storm's settings that change nothing here, and why: who gives one is warned."""

FOREIGN = {
    "transactional.zookeeper.": "how far the input was read is in submit's checkpointLocation, not in ZooKeeper",
    **dict.fromkeys(
        ("storm.zookeeper.", "storm.cluster.", "storm.local.", "storm.messaging.", "nimbus.", "supervisor."),
        "Spark's cluster runs the topology, and is set up by SparkSession.builder",
    ),
    "drpc.": "a topology answers no calls; statefx.Checkpoint(location).state(...) reads its state while it runs",
    "execution.checkpointing.": "transactions begin every topology.state.checkpoint.interval.ms",
}
"""Prefixes of settings of Storm's and Flink's clusters, and why they change nothing; bolts can read them."""

ALIKE = 0.88
"""How like a setting's name another must be to be taken for it; ``message.timeout`` is still the user's own."""

ENCODING = ("codec", "keyClass", "valueClass", "keySerializerClass", "valueSerializerClass", "components")
"""Options in ``topology.state.provider.config`` that say how keys and values become bytes; providers don't see them."""

ELSEWHERE = {
    **dict.fromkeys(ENCODING, "an option of the encoding: put it into topology.state.provider.config"),
    **{kind: f'a trigger: submit(..., trigger={{"{kind}": True}})' for kind in ("availableNow", "once")},
    "processingTime": 'a trigger: submit(..., trigger={"processingTime": "5 seconds"})',
    "closeTime": 'a part of a trigger: submit(..., trigger={"availableNow": True, "closeTime": True})',
    **{
        name: f"an argument of submit: submit(..., {name}=...)"
        for name in ("trigger", "batchId", "adopt", "rename", "drop", "rescale", "progress", "listeners")
    },
}
"""Names that are taken for no setting of the user's own, and where they belong."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings."""

    key: str
    type: str
    """``int``, ``seconds`` (an int or a float), ``switch``, ``text``, ``provider`` or ``options``."""
    default: Any
    doc: str
    least: int = 0
    most: int = INT_MAX
    implied: str = ""
    """The default in words, where `default` does not say it."""

    @property
    def attribute(self) -> str:
        """The attribute of `Config`: the key without ``topology.``, with underscores."""
        return self.key.removeprefix(PREFIX).replace(".", "_")

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        return {
            "int": f"a whole number from {self.least} to {self.most}",
            "seconds": f"a number of seconds, more than {self.least} and at most {self.most}",
            "switch": "True or False",
            "text": NAME,
            "provider": 'the name of a registered provider, or "module:Class"',
            "options": "a mapping with texts as keys, or the JSON text of an object",
        }[self.type]


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "topology.state.provider", "provider", "memory", "Where state is kept: a registered name or `module:Class`."
    ),
    Setting(
        "topology.state.provider.config",
        "options",
        {},
        "Options of the state provider, and of the codec.",
    ),
    Setting(
        "topology.state.checkpoint.interval.ms",
        "int",
        None,
        "The shortest time between the beginnings of two transactions; of spouts, `topology.max.spout.pending` begin "
        "in it, evenly spread. `trigger` overrules it.",
        implied="1000 with DataFrames, 100 with spouts, and 25 with a `Spout`",
    ),
    Setting(
        "topology.message.timeout.secs",
        "seconds",
        30,
        "How long bolts may hold tuples of a `Spout`'s message over transactions before it fails.",
    ),
    Setting(
        "topology.tick.tuple.freq.secs",
        "seconds",
        None,
        "How often each task of a bolt gets a tick, unless its `setTicks` says so.",
        implied="no ticks",
    ),
    Setting(
        "topology.max.spout.pending",
        "int",
        None,
        "How many transactions of spouts may be in flight; with DataFrames it must be 1. With a `Spout`: how many "
        "tuples of one of its tasks may be neither acked nor failed.",
        least=1,
        implied="1 transaction; any number of tuples",
    ),
    Setting(
        "topology.spout.batch.ms",
        "int",
        50,
        "How long a transaction asks the tasks of a `Spout` for tuples, while they have some.",
        least=1,
    ),
    Setting(
        "topology.sleep.spout.wait.strategy.time.ms",
        "int",
        1,
        "The pause before a task of a `Spout` that had no tuple is asked again; doubles up to 20 times as long.",
        least=1,
    ),
    Setting(
        "topology.acker.executors",
        "int",
        None,
        "How many tasks track tuples that bolts hold over transactions. 0: a message is acked whatever becomes of its "
        "tuples.",
        implied="1",
    ),
    Setting(
        "topology.trace",
        "switch",
        False,
        "Whether a failed message of a `Spout` says what each bolt did with it.",
        implied="`False`",
    ),
    Setting(
        "topology.control.port",
        "int",
        0,
        "The port of the driver that tasks connect to; 0 takes a free one.",
        most=65535,
    ),
    Setting(
        "topology.metrics.port",
        "int",
        None,
        "The port of the driver for Prometheus; 0 takes a free one (`query.metricsUrl`). It needs the extra `metrics`.",
        most=65535,
        implied="none",
    ),
    Setting(
        "topology.metrics.host",
        "text",
        "127.0.0.1",
        'The address of that port: `"0.0.0.0"` lets other machines read it.',
    ),
    Setting(
        "topology.ui.port",
        "int",
        None,
        "The port of the driver's page; 0 takes a free one (`query.uiUrl`). It needs the extra `ui`.",
        most=65535,
        implied="no page",
    ),
    Setting(
        "topology.ui.host",
        "text",
        "127.0.0.1",
        'The address of that port: `"0.0.0.0"` lets other machines read it, with a token.',
    ),
    Setting(
        "topology.transactional.id",
        "text",
        None,
        "The name of the application at the targets of its sinks.",
        implied="the topology's name",
    ),
    Setting(
        "topology.transaction.timeout.secs",
        "seconds",
        600,
        "How long one attempt of a transaction may take, without restoring state (up to an hour) and waiting for "
        "slots.",
    ),
    Setting(
        "topology.transaction.attempts.max",
        "int",
        8,
        "How many attempts of a transaction may fail before the query ends with AttemptsExhaustedError.",
        least=1,
    ),
    Setting(
        "topology.transaction.retry.delay.ms",
        "int",
        100,
        "The pause before a failed transaction is retried. It doubles with each failure, up to 10 seconds (or this "
        "setting, if it is more).",
    ),
)


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one submitted topology, checked.

    Every attribute is named like its key, without ``topology.`` and with underscores; `user` keeps the keys that do not
    begin with ``topology.``, as they were given, and `without_effect` names those that change nothing. Of
    ``topology.state.provider.config``, `state_provider_config` is what the provider gets, and `state_encoding` the
    options in `ENCODING`, taken out before.

    Examples
    --------
    >>> config = Config.parse({"topology.max.spout.pending": 2, "feed.url": "http://feed"}, "word-count")
    >>> config.max_spout_pending, config.transactional_id, config.user["feed.url"]
    (2, 'word-count', 'http://feed')
    """

    state_provider: str
    state_provider_config: Mapping[str, Any]
    state_encoding: Mapping[str, Any]
    state_checkpoint_interval_ms: int | None
    message_timeout_secs: float
    tick_tuple_freq_secs: float | None
    max_spout_pending: int | None
    spout_batch_ms: int
    sleep_spout_wait_strategy_time_ms: int
    acker_executors: int | None
    trace: bool
    control_port: int
    metrics_port: int | None
    metrics_host: str
    ui_port: int | None
    ui_host: str
    transactional_id: str
    transaction_timeout_secs: float
    transaction_attempts_max: int
    transaction_retry_delay_ms: int
    user: Mapping[str, Any]
    without_effect: tuple[str, ...] = ()

    @classmethod
    def parse(cls, mapping: Mapping[str, Any] | None, topology_name: str) -> Config:
        """Check a mapping of settings and fill in the defaults.

        Called by ``submit``, on the driver, before Spark starts.

        Parameters
        ----------
        mapping : Mapping or None
            Settings by full name, and any keys of the user's own that don't begin with ``topology.``.
        topology_name : str
            The default of ``topology.transactional.id``.

        Raises
        ------
        ConfigError
            A ``topology.*`` key is unknown, or one that looks like a setting and is none (``nearest`` has the likely
            one), or a value is of the wrong type or out of range; the message names key, value and what is allowed.
        """
        if mapping is not None and not isinstance(mapping, Mapping):
            raise ConfigError(
                f"config must be a mapping of settings, got a {type(mapping).__name__}; for example "
                '{"topology.state.provider": "rocksdb"}'
            )
        given = dict(mapping or {})
        for key in given:
            _check_name(key)
        without_effect = tuple(key for key in given if _why_without_effect(key))
        values = {
            setting.attribute: _check(setting, given.pop(setting.key)) if setting.key in given else setting.default
            for setting in SETTINGS
        }
        values["state_provider_config"], values["state_encoding"] = _split(values["state_provider_config"])
        if values["transactional_id"] is None:
            values["transactional_id"] = topology_name
        user = {key: value for key, value in given.items() if not key.startswith(PREFIX)}
        return cls(**values, user=user, without_effect=without_effect)

    def doubts(self) -> Iterator[str]:
        """Yield what changes nothing here: settings of Storm and Flink, and the host of a port that is not given."""
        for key in self.without_effect:
            yield f"{key} has no effect: {_why_without_effect(key)}"
        for name, port, host in (("ui", self.ui_port, self.ui_host), ("metrics", self.metrics_port, self.metrics_host)):
            if port is None and host != next(each.default for each in SETTINGS if each.key == f"topology.{name}.host"):
                yield (
                    f"topology.{name}.host has no effect, as there is no topology.{name}.port: give it a port, or 0 "
                    "for any that is free"
                )

    def mapping(self) -> dict[str, Any]:
        """Return all settings by full name, defaults and the user's own keys included: ``context.config``."""
        values = {setting.key: getattr(self, setting.attribute) for setting in SETTINGS}
        values["topology.state.provider.config"] = {**self.state_provider_config, **self.state_encoding}
        return values | dict(self.user)


def reference_table() -> str:
    """Return the settings as a Markdown table, for the documentation.

    Examples
    --------
    >>> print(reference_table().splitlines()[0])
    | setting | default | allowed | meaning |
    """
    lines = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for setting in SETTINGS:
        default = setting.implied or f"`{json.dumps(setting.default)}`"
        allowed = setting.allowed.replace(f" and at most {INT_MAX}", "").replace(f" to {INT_MAX}", "")
        lines.append(f"| `{setting.key}` | {default} | {allowed} | {setting.doc} |")
    return "\n".join(lines) + "\n"


def _why_without_effect(key: str) -> str:
    """Return why a setting of another system changes nothing; empty if `key` is none."""
    families = (why for prefix, why in FOREIGN.items() if key.startswith(prefix))
    return WITHOUT_EFFECT.get(key) or next(families, "")


def _check_name(key: Any) -> None:
    """Refuse the name of a setting that there isn't; what looks like none is the user's own."""
    if not isinstance(key, str):
        raise ConfigError(f"the name of a setting is a text, not {key!r}", key=key)
    known = {setting.key for setting in SETTINGS}
    if key in known or key in WITHOUT_EFFECT:
        return
    if key.lower().startswith("spark."):
        raise ConfigError(f"{key!r} is a setting of Spark: give it to SparkSession.builder.config", key=key)
    if key in ELSEWHERE:
        raise ConfigError(f"config has {key!r}, {ELSEWHERE[key]}", key=key)
    nearest = _nearest(key)
    if nearest is not None:
        raise ConfigError(
            f"unknown setting {key!r}; the nearest is {nearest!r}. Settings of your own must not begin with "
            f"{PREFIX!r}, nor be named like one of statefx.",
            key=key,
            nearest=nearest,
        )


@functools.lru_cache(1000)  # drivers of tests come by the hundred, each with the same settings of its own
def _nearest(key: str) -> str | None:
    """Return the setting that `key` was likely meant to be, or None if it is the user's own."""
    first, dot, _ = key.lower().partition(".")
    known = [setting.key for setting in SETTINGS]
    if dot and difflib.SequenceMatcher(None, first, PREFIX.rstrip(".")).ratio() >= ALIKE:
        return difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.0)[0]
    plain = {_squashed(name): name for name in known} | {_squashed(name.removeprefix(PREFIX)): name for name in known}
    near = difflib.get_close_matches(_squashed(key), plain, n=1, cutoff=ALIKE)
    return plain[near[0]] if near else None


def _squashed(name: str) -> str:
    return re.sub(r"[._\s-]", "", name).lower()


def _check(setting: Setting, value: Any) -> Any:
    """Return `value` as the setting's type."""
    if setting.type == "options":
        return _options(setting, value)
    if value is None and setting.default is None:
        return None
    if not _fits(setting, value):
        raise _refused(setting, value)
    return value


def _fits(setting: Setting, value: Any) -> bool:
    if setting.type == "switch":
        return isinstance(value, bool)
    if setting.type == "text":
        return is_name(value)
    if setting.type == "provider":
        return isinstance(value, str) and PROVIDER.fullmatch(value) is not None
    if setting.type == "int":
        return isinstance(value, int) and not isinstance(value, bool) and setting.least <= value <= setting.most
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and setting.least < value <= setting.most


def _options(setting: Setting, value: Any) -> Mapping[str, Any]:
    options = value
    if isinstance(value, str):
        try:
            options = json.loads(value)
        except ValueError as error:
            raise ConfigError(
                f"{setting.key} is no valid JSON: {error}. Give {setting.allowed}.", key=setting.key
            ) from None
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise ConfigError(  # without the value, here and above: passwords are among the options
            f"{setting.key} is of type {type(options).__name__}; it must be {setting.allowed}", key=setting.key
        )
    return dict(options)


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the provider's options, and those of the encoding."""
    taken = {key: value for key, value in options.items() if key in ENCODING}
    return {key: value for key, value in options.items() if key not in taken}, taken


def _refused(setting: Setting, value: Any) -> ConfigError:
    return ConfigError(
        f"{setting.key} is {value!r}, of type {type(value).__name__}; it must be {setting.allowed}",
        key=setting.key,
        value=value,
    )
