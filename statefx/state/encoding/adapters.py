"""Codecs made of what users name by options: serializers, and types that keys and values must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statefx.errors import CodecError
from statefx.state.encoding.codec import Codec, StandardCodec
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
