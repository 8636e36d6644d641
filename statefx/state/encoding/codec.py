"""Codecs: turn keys and values into bytes and back; what goes wrong in users' codecs becomes an error of state."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from statefx.errors import CodecError, FailedException, StateCorruptedError, StateError
from statefx.state.encoding.keys import key_decoder, key_encoder
from statefx.state.encoding.values import decode_value, make_encoder


class Codec(ABC):
    """Turns the keys and values of one task's state into bytes and back.

    Made in the task, one for each opened state, without arguments; used by one thread. Users name one of their own in
    ``topology.state.provider.config``, as ``codec``; ``statefx.testing.codec_contract`` has tests for it.

    Contract
    --------
    * Bytes of keys order as the keys do: by type, then by value.
    * Keys of different types are different keys; equal keys of one type have the same bytes, in every process.
    * What was encoded is decoded to something equal and of the same type.
    * ``decode_value`` makes new objects at each call.
    * What can't be encoded raises CodecError with ``path`` and ``type``; bytes that can't be decoded raise
      StateCorruptedError. Other errors of a user's codec are turned into these, but for OSError (something could not
      be reached: the transaction is tried again) and FailedException.

    Attributes
    ----------
    name : str
        Identity of the format; stored with the checkpoint, which can only be read with the same one.
    """

    name: ClassVar[str]

    @abstractmethod
    def encode_key(self, key: Any, /) -> bytes:
        """Return the bytes of `key`."""

    @abstractmethod
    def decode_key(self, data: bytes, /) -> Any:
        """Return the key whose bytes are `data`."""

    @abstractmethod
    def encode_value(self, value: Any, /) -> bytes:
        """Return the bytes of `value`."""

    @abstractmethod
    def decode_value(self, data: bytes, /) -> Any:
        """Return the value whose bytes are `data`."""


class FunctionCodec(Codec):
    """A codec of four functions; one of its own class goes straight to them, one derived from it by the methods."""

    def __init__(
        self,
        encode_key: Callable[[Any], bytes],
        decode_key: Callable[[bytes], Any],
        encode_value: Callable[[Any], bytes],
        decode_value: Callable[[bytes], Any],
    ) -> None:
        self._encode_key, self._decode_key = encode_key, decode_key
        self._encode_value, self._decode_value = encode_value, decode_value
        if type(self) in (FunctionCodec, StandardCodec):
            self.encode_key = encode_key  # type: ignore[method-assign]
            self.decode_key = decode_key  # type: ignore[method-assign]
            self.encode_value = encode_value  # type: ignore[method-assign]
            self.decode_value = decode_value  # type: ignore[method-assign]

    def encode_key(self, key: Any, /) -> bytes:
        return self._encode_key(key)

    def decode_key(self, data: bytes, /) -> Any:
        return self._decode_key(data)

    def encode_value(self, value: Any, /) -> bytes:
        return self._encode_value(value)

    def decode_value(self, data: bytes, /) -> Any:
        return self._decode_value(data)


class StandardCodec(FunctionCodec):
    """Order-preserving keys (`statefx.state.encoding.keys`) and msgpack values (`statefx.state.encoding.values`).

    Parameters
    ----------
    head : bytes
        What the bytes of every key begin with: the byte of a space (`statefx.state.contract.spaces`), or nothing.

    Examples
    --------
    >>> codec = StandardCodec()
    >>> codec.decode_value(codec.encode_value({"seen": (1, 2)}))
    {'seen': (1, 2)}
    """

    name = "statefx-1"

    def __init__(self, head: bytes = b"") -> None:
        super().__init__(key_encoder(head), key_decoder(head), make_encoder(), decode_value)


_short = reprlib.Repr()
_short.maxother = _short.maxstring = _short.maxlong = 120


class GuardedCodec(Codec):
    """A codec that statefx did not write; it knows nothing of `head`, with which the bytes of every key begin.

    Contract
    --------
    * Whatever ``encode_key`` or ``encode_value`` raises, and a result that is not bytes, is a CodecError with
      ``path`` and ``type``.
    * Whatever ``decode_key`` or ``decode_value`` raises is a StateCorruptedError.
    * But an OSError tells nothing of what was to be encoded or decoded (a server is down, a disk is full): it is a
      StateError, as of a store that can't be reached, which fails the transaction and not the query. A
      FailedException and a MemoryError stay what they are.
    """

    def __init__(self, inner: Codec, head: bytes = b"") -> None:
        self._inner = inner
        self._head = head
        self._name = getattr(inner, "name", type(inner).__name__)

    def encode_key(self, key: Any, /) -> bytes:
        try:
            return self._head + self._encoded(self._inner.encode_key, key, "key")
        except CodecError as error:
            if "key" in error.data:
                raise
            shown = _short.repr(key)
            raise CodecError(f"{error.message} (key {shown})", **error.data, key=shown) from error

    def encode_value(self, value: Any, /) -> bytes:
        return self._encoded(self._inner.encode_value, value, "value")

    def decode_key(self, data: bytes, /) -> Any:
        return self._decoded(self._inner.decode_key, data[len(self._head) :], "key")

    def decode_value(self, data: bytes, /) -> Any:
        return self._decoded(self._inner.decode_value, data, "value")

    def _encoded(self, encode: Callable[[Any], bytes], thing: Any, path: str) -> bytes:
        try:
            data = encode(thing)
        except CodecError as error:
            known = {"path": path, "type": type(thing).__name__}
            raise CodecError(error.message, **{**known, **error.data}) from error
        except (FailedException, MemoryError):
            raise
        except OSError as error:
            raise self._failure("encode", path, error) from error
        except Exception as error:
            raise self._refusal(path, thing, f"{type(error).__name__}: {error}") from error
        if type(data) is not bytes:
            raise self._refusal(path, thing, f"it made a {type(data).__name__} of it, not bytes")
        return data

    def _refusal(self, path: str, thing: Any, why: str) -> CodecError:
        kind = type(thing).__name__
        return CodecError(f"{path} of type {kind}: codec {self._name!r} can't encode it: {why}", path=path, type=kind)

    def _failure(self, verb: str, what: str, error: OSError) -> StateError:
        return StateError(f"codec {self._name!r} could not {verb} a {what}: {type(error).__name__}: {error}")

    def _decoded(self, decode: Callable[[bytes], Any], data: bytes, what: str) -> Any:
        try:
            return decode(data)
        except (StateCorruptedError, FailedException, MemoryError):
            raise
        except OSError as error:
            raise self._failure("decode", what, error) from error
        except Exception as error:
            raise StateCorruptedError(
                f"{data[:80]!r} can't be decoded as a {what} by codec {self._name!r}: {type(error).__name__}: {error}; "
                "it is damaged, or was written by another version of the codec under the same name",
                data=data[:80],
            ) from error
