"""What turns keys and values into bytes and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

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
