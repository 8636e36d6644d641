"""How each bolt's keys and values become bytes, as the user's options say: codecs, classes and serializers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from statefx.config import ENCODING
from statefx.errors import CodecError, ConfigError
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.encoding.references import codec_class, construct, nearest, serializer_class, value_class
from statefx.state.encoding.values import SCALARS


class SerializerCodec(Codec):
    """Keys and values each by a serializer, as in Storm; by the standard codec where there is none.

    Parameters
    ----------
    key, value : object or None
        With ``serialize(thing) -> bytes`` and ``deserialize(bytes) -> thing``.
    name : str
        The identity of the format.
    """

    def __init__(self, key: Any, value: Any, name: str) -> None:
        self.name = name  # type: ignore[misc]  # of two classes that only the user's options bring together
        standard = StandardCodec()
        self._encode_key: Callable[[Any], bytes] = key.serialize if key is not None else standard.encode_key
        self._decode_key: Callable[[bytes], Any] = key.deserialize if key is not None else standard.decode_key
        self._encode_value: Callable[[Any], bytes] = value.serialize if value is not None else standard.encode_value
        self._decode_value: Callable[[bytes], Any] = value.deserialize if value is not None else standard.decode_value

    def encode_key(self, key: Any, /) -> bytes:
        """Return the bytes of `key`."""
        return self._encode_key(key)

    def decode_key(self, data: bytes, /) -> Any:
        """Return the key whose bytes are `data`."""
        return self._decode_key(data)

    def encode_value(self, value: Any, /) -> bytes:
        """Return the bytes of `value`."""
        return self._encode_value(value)

    def decode_value(self, data: bytes, /) -> Any:
        """Return the value whose bytes are `data`."""
        return self._decode_value(data)


class TypedCodec(Codec):
    """Refuses keys and values of other types than were declared; the bytes are those of the codec below.

    Parameters
    ----------
    inner : Codec
    key_class, value_class : type or None
        What keys and values must be: exactly, if state tells it from its subclasses (a bool is no int); else an
        instance.
    """

    def __init__(self, inner: Codec, key_class: type | None, value_class: type | None) -> None:
        self.name = inner.name  # type: ignore[misc]  # the bytes are the same
        self._inner = inner
        self._key_class = key_class
        self._value_class = value_class
        self.decode_key = inner.decode_key  # type: ignore[method-assign]  # goes straight to what does it
        self.decode_value = inner.decode_value  # type: ignore[method-assign]

    def encode_key(self, key: Any, /) -> bytes:
        """Return the bytes of `key`."""
        _require(key, self._key_class, "key")
        return self._inner.encode_key(key)

    def decode_key(self, data: bytes, /) -> Any:
        """Return the key whose bytes are `data`."""
        return self._inner.decode_key(data)

    def encode_value(self, value: Any, /) -> bytes:
        """Return the bytes of `value`."""
        _require(value, self._value_class, "value")
        return self._inner.encode_value(value)

    def decode_value(self, data: bytes, /) -> Any:
        """Return the value whose bytes are `data`."""
        return self._inner.decode_value(data)


def _require(thing: Any, wanted: type | None, path: str) -> None:
    if wanted is None or type(thing) is wanted:
        return
    if wanted in SCALARS or not isinstance(thing, wanted):
        kind = type(thing).__name__
        raise CodecError(f"a {path} of type {kind}, but {path}Class is {wanted.__name__}", path=path, type=kind)


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

        Raises
        ------
        ConfigError
            A class can't be loaded, or lacks something.
        """
        if "codec" in self.classes:
            return codec_class(self.classes["codec"]).name
        if not self.own:
            return StandardCodec.name
        names = [_serializer_name(self.classes.get(option)) for option in SERIALIZERS]
        return "key {}, value {}".format(*names)

    def check(self) -> None:
        """Load every class and look whether it will do.

        Raises
        ------
        ConfigError
            Names the option, the class and the remedy.
        """
        for option, reference in self.classes.items():
            _LOADERS[option](reference)

    def build(self) -> Codec:
        """Make the codec.

        Raises
        ------
        ConfigError
            A class can't be loaded, or its constructor raised.
        """
        codec: Codec
        if "codec" in self.classes:
            codec = construct(codec_class(self.classes["codec"]))
        elif self.own:
            key, value = (self._serializer(option) for option in SERIALIZERS)
            codec = SerializerCodec(key, value, self.name)
        else:
            codec = StandardCodec()
        kinds = [value_class(self.classes[option]) if option in self.classes else None for option in _TYPES]
        return codec if kinds == [None, None] else TypedCodec(codec, *kinds)

    def _serializer(self, option: str) -> Any:
        return construct(serializer_class(self.classes[option])) if option in self.classes else None


def parse(options: Mapping[str, Any], components: Mapping[str, bool]) -> dict[str, Encoding]:
    """Check the options of the encoding; called on the driver, before Spark starts.

    Parameters
    ----------
    options : Mapping
        ``Config.state_encoding``: those for all bolts, and ``components``, which has a bolt's own by its id. A bolt
        that is named there has only what stands there.
    components : Mapping[str, bool]
        The topology's components: whether they keep state.

    Returns
    -------
    dict of Encoding
        For every stateful component.

    Raises
    ------
    ConfigError
        An option or a component is unknown, options exclude each other, or a class won't do.
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
