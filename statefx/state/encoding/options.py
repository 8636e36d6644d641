"""How each bolt's keys and values become bytes, as the user's options say: codecs, classes and serializers."""

from __future__ import annotations

import builtins
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from statefx.config import ENCODING
from statefx.errors import CodecError, ConfigError, StatefxError
from statefx.state.encoding.codec import Codec, FunctionCodec, StandardCodec
from statefx.state.encoding.values import SCALARS


def find(reference: str, kind: type[StatefxError] = ConfigError) -> Any:
    """Import the object of a reference, ``module:Class``; errors of the import come through.

    StatefxError, of `kind`: it is no reference, names nothing, or workers could not import it.
    """
    module_name, _, attributes = reference.partition(":")
    if not module_name or not attributes:
        raise kind(f"{reference!r} is not a reference: write 'module:Class'", reference=reference)
    if module_name == "__main__":
        raise kind(
            f"{reference} is in the script that is run, which workers don't import: move the class to a module that is "
            "installed on the driver and on every executor",
            reference=reference,
        )
    found: Any = import_module(module_name)
    for name in attributes.split("."):
        if not hasattr(found, name):
            near = nearest(name, [each for each in vars(found) if not each.startswith("_")])
            raise kind(f"{reference}: module {module_name} has no {attributes}{near}", reference=reference)
        found = getattr(found, name)
    return found


def load(reference: str) -> type[Any]:
    """Return the class of a reference; ConfigError if it can't be imported, or is no class."""
    try:
        found = find(reference)
    except StatefxError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{reference} can't be imported: {type(error).__name__}: {error}; install it, on the driver and on every "
            "executor",
            reference=reference,
        ) from error
    if not isinstance(found, type):
        raise ConfigError(f"{reference} is not a class", reference=reference)
    return found


def codec_class(reference: str) -> type[Codec]:
    """Return a class of codecs; ConfigError if it lacks something."""
    found = load(reference)
    if not issubclass(found, Codec):
        raise ConfigError(f"codec {reference} is not a subclass of statefx.state.Codec", reference=reference)
    missing = sorted(found.__abstractmethods__)
    name = getattr(found, "name", None)
    if not isinstance(name, str) or not name:
        missing.append("name (a text)")
    if missing:
        raise ConfigError(f"codec {reference} does not define {', '.join(missing)}", reference=reference)
    if found is not StandardCodec and name == StandardCodec.name:  # one that is derived from it has its name
        raise ConfigError(
            f"codec {reference} has the name of the standard codec, {name!r}: give it one of its own",
            reference=reference,
        )
    return _constructible(found, reference)


def serializer_class(reference: str) -> type:
    """Return a class of serializers, as Storm's: ``serialize(thing) -> bytes``, ``deserialize(bytes) -> thing``."""
    found = load(reference)
    missing = [name for name in ("serialize", "deserialize") if not callable(getattr(found, name, None))]
    missing += sorted(set(getattr(found, "__abstractmethods__", ())) - set(missing))
    if missing:
        raise ConfigError(f"serializer {reference} does not define {', '.join(missing)}", reference=reference)
    return _constructible(found, reference)


def value_class(reference: str) -> type:
    if ":" in reference:
        return load(reference)
    found = getattr(builtins, reference, None)
    if not isinstance(found, type):
        raise ConfigError(f"{reference!r} is no builtin type; write others as 'module:Class'", reference=reference)
    return found


def _constructible(found: type, reference: str) -> type:
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise ConfigError(f"{reference} is made without arguments, but {error}", reference=reference) from error
    except ValueError:  # written in C, without a signature
        pass
    return found


def construct(found: type) -> Any:
    try:
        return found()
    except Exception as error:
        raise ConfigError(
            f"{found.__module__}:{found.__qualname__} can't be made: {type(error).__name__}: {error}"
        ) from error


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a question with the name that was likely meant, or "" if none is near."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _requires(encode: Callable[[Any], bytes], wanted: type | None, path: str) -> Callable[[Any], bytes]:
    """Return `encode`, which refuses what is not of the type `wanted`.

    Exactly of it, if state tells it from its subclasses (a bool is no int); else an instance.
    """
    if wanted is None:
        return encode

    def checked(thing: Any, /) -> bytes:
        if type(thing) is not wanted and (wanted in SCALARS or not isinstance(thing, wanted)):
            kind = type(thing).__name__
            raise CodecError(f"a {path} of type {kind}, but {path}Class is {wanted.__name__}", path=path, type=kind)
        return encode(thing)

    return checked


SETTING = "topology.state.provider.config"
COMPONENTS = "components"
CLASSES = tuple(name for name in ENCODING if name != COMPONENTS)
SERIALIZERS = ("keySerializerClass", "valueSerializerClass")
BYTES = ("codec", *SERIALIZERS)
"""Those that decide what the bytes are; the others only refuse."""

_TYPES = ("keyClass", "valueClass")
_LOADERS: Mapping[str, Callable[[str], type]] = {
    "codec": codec_class,
    **dict.fromkeys(SERIALIZERS, serializer_class),
    **dict.fromkeys(_TYPES, value_class),
}


@dataclass(frozen=True)
class Encoding:
    r"""How the keys and values of one bolt become bytes.

    Attributes
    ----------
    classes : Mapping[str, str]
        By the option's name a reference, ``module:Class``, or for ``keyClass`` and ``valueClass`` the name of a
        builtin type. Loaded where it is needed: on the driver to be checked, in each task to be used.

    Examples
    --------
    >>> Encoding({"valueClass": "int"}).build().encode_value(1)
    b'\x01'
    """

    classes: Mapping[str, str] = field(default_factory=dict)

    @property
    def own(self) -> dict[str, str]:
        """The classes that decide what the bytes are; none: the standard codec does."""
        return {option: reference for option, reference in self.classes.items() if option in BYTES}

    @property
    def name(self) -> str:
        """The identity of the bytes' format: a codec's ``name``, or one made of the serializers'.

        ConfigError: a class can't be loaded, or lacks something.
        """
        if "codec" in self.classes:
            return codec_class(self.classes["codec"]).name
        if not self.own:
            return StandardCodec.name
        names = [_serializer_name(self.classes.get(option)) for option in SERIALIZERS]
        return "key {}, value {}".format(*names)

    def check(self) -> None:
        """Load and check every class; ConfigError names the option, the class and the remedy."""
        for option, reference in self.classes.items():
            _LOADERS[option](reference)

    def build(self) -> Codec:
        """Make the codec; ConfigError if a class can't be loaded, or its constructor raised."""
        codec: Codec = construct(codec_class(self.classes["codec"])) if "codec" in self.classes else StandardCodec()
        if self.classes.keys() <= {"codec"}:
            return codec
        encode_key, decode_key = self._functions("keySerializerClass", codec.encode_key, codec.decode_key)
        encode_value, decode_value = self._functions("valueSerializerClass", codec.encode_value, codec.decode_value)
        kinds = [value_class(self.classes[option]) if option in self.classes else None for option in _TYPES]
        built = FunctionCodec(
            _requires(encode_key, kinds[0], "key"), decode_key, _requires(encode_value, kinds[1], "value"), decode_value
        )
        built.name = self.name  # type: ignore[misc]  # of classes that only the user's options bring together
        return built

    def _functions(self, option: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> Any:
        if option not in self.classes:
            return encode, decode
        serializer = construct(serializer_class(self.classes[option]))
        return serializer.serialize, serializer.deserialize


def parse(options: Mapping[str, Any], components: Mapping[str, bool]) -> dict[str, Encoding]:
    """Check the options of the encoding and return one for each stateful component; called before Spark starts.

    `options` (``Config.state_encoding``) has those for all bolts, and ``components``, which has a bolt's own by its id:
    a bolt that is named there has only what stands there. `components` says of the topology's whether they keep state.

    Raises ConfigError: an option or a component is unknown, options exclude each other, or a class won't do.
    """
    common = {name: value for name, value in options.items() if name != COMPONENTS}
    named = options.get(COMPONENTS, {})
    if not isinstance(named, Mapping):
        raise _refusal(f"{COMPONENTS} is {named!r}; it must be a mapping from bolts' ids to mappings of options")
    stateful = [id for id, keeps in components.items() if keeps]
    for id in named:
        if id not in stateful:
            why = "keeps no state" if id in components else f"is not in the topology{nearest(id, stateful)}"
            raise _refusal(f"{COMPONENTS} names {id!r}, which {why}", component=id)
    shared = _encoding(common, "")
    return {id: _encoding(named[id], f"{COMPONENTS}, {id!r}: ") if id in named else shared for id in stateful}


def _encoding(options: Any, where: str) -> Encoding:
    if not isinstance(options, Mapping):
        raise _refusal(f"{where}{options!r} is not a mapping of options")
    for name, value in options.items():
        if name not in CLASSES:
            raise _refusal(f"{where}there is no option {name!r}{nearest(name, CLASSES)}", option=name)
        if not isinstance(value, str) or not value.strip():
            raise _refusal(f"{where}{name} is {value!r}; give a class as 'module:Class'", option=name)
    both = [name for name in SERIALIZERS if name in options]
    if "codec" in options and both:
        raise _refusal(
            f"{where}codec and {both[0]} exclude each other: a codec encodes keys and values", option="codec"
        )
    encoding = Encoding(dict(options))
    try:
        encoding.check()
    except ConfigError as error:
        raise _refusal(f"{where}{error.message}", **error.data) from error.__cause__
    return encoding


def _serializer_name(reference: str | None) -> str:
    """Return its ``name``, if the class has one that is a text, so that it may move to another module."""
    if reference is None:
        return StandardCodec.name
    name = getattr(serializer_class(reference), "name", None)
    return name if isinstance(name, str) and name else reference


def _refusal(message: str, **data: Any) -> ConfigError:
    return ConfigError(f"{SETTING}: {message}", **{"key": SETTING, **data})
