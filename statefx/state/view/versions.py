"""Values that tell which version of their bolt wrote them, and those of older versions brought up to date.

A value of version 1 lies as its codec wrote it. One of a later version, and one whose own bytes begin with the mark,
has an envelope: the mark, the version as a varint (7 bits a byte, low ones first), the codec's bytes. The standard
codec's bytes never begin with the mark, so bolts of version 1 pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statefx.errors import CodecError, StateCorruptedError
from statefx.state.contract.spaces import Space
from statefx.state.encoding.codec import MARK, Codec, StandardCodec
from statefx.state.encoding.guard import GuardedCodec
from statefx.state.view.answers import Answers
from statefx.state.view.overlay import Overlay, of_key
from statefx.state.view.places import Kind, Packed, Place

VERSION_MAX = 2**31 - 1
_VARINT_BYTES_MAX = 5

Migrate = Callable[[int, Any, Any], Any]
"""(version, key, value) -> the value in its current form."""


def overlay_for(
    store: Answers,
    codec: Codec | None,
    cache_bytes: int,
    space: Space,
    state_version: int = 1,
    migrate: Migrate | None = None,
) -> Overlay:
    """Return what keeps the changes of one task's state: the plainest overlay that does it."""
    own = codec is not None and type(codec) is not StandardCodec
    spaced = GuardedCodec(codec, space.value) if codec is not None and own else StandardCodec(space.value)
    if not own and state_version == 1:
        return Overlay(store, spaced, cache_bytes, space)
    return SealedOverlay(store, spaced, cache_bytes, space, state_version, migrate, strict=own)


def seal(version: int, data: bytes) -> bytes:
    r"""Return the bytes that are stored for a value of a version.

    >>> seal(1, b"plain"), seal(300, b"x")
    (b'plain', b'\xc1\xac\x02x')
    """
    if version == 1 and data[:1] != MARK:
        return data
    return envelope(version) + data


def envelope(version: int) -> bytes:
    """Return what stands before the bytes of a value of `version`."""
    head = bytearray(MARK)
    while version > 0x7F:
        head.append(version & 0x7F | 0x80)
        version >>= 7
    head.append(version)
    return bytes(head)


def unseal(data: bytes) -> tuple[int, bytes]:
    """Return version and codec's bytes of what is stored.

    Raises
    ------
    StateCorruptedError
        The envelope is damaged.
    """
    if data[:1] != MARK:
        return 1, data
    version = 0
    for at, byte in enumerate(data[1 : 1 + _VARINT_BYTES_MAX]):
        version |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            if 1 <= version <= VERSION_MAX:
                return version, data[at + 2 :]
            break
    raise StateCorruptedError(f"{data[:80]!r} does not tell its version", data=data[:80])


class SealedOverlay(Overlay):
    """An overlay of values that tell their version.

    Parameters
    ----------
    store, codec, cache_bytes, space
        As of `Overlay`.
    version : int
        The bolt's ``stateVersion``.
    migrate : callable (version, key, value) -> value, optional
        Called with what an older version wrote, as it is read; None: it is shown as it was written.
    strict : bool
        Trust the codec's bytes alone, for codecs that statefx did not write: keys with equal bytes are one key, and
        a value is encoded when it is put and decoded when it is read again, also in the same transaction.
    """

    __slots__ = ("_head", "_migrate", "_strict", "_version")

    def __init__(
        self,
        store: Answers,
        codec: Codec,
        cache_bytes: int,
        space: Space,
        version: int,
        migrate: Migrate | None = None,
        *,
        strict: bool = False,
    ) -> None:
        super().__init__(store, codec, cache_bytes, space)
        self._version = version
        self._head = envelope(version)
        self._migrate = migrate
        self._strict = strict
        self._encode = self._sealed if version > 1 else self._marked
        if strict:
            self.plain = frozenset()

    def _sealed(self, value: Any) -> bytes:
        return self._head + self.codec.encode_value(value)

    def _marked(self, value: Any) -> bytes:
        return seal(1, self.codec.encode_value(value))

    def place(self, key: Any) -> Place:
        """Return where `key` is kept; raises CodecError for what can't be a key."""
        if not self._strict:
            return super().place(key)
        key_bytes = self._encode_key(key)
        return Packed, key_bytes, key_bytes

    def _kind(self, key: Any) -> Kind:
        return Packed if self._strict else super()._kind(key)

    def decoded(self, key_bytes: bytes, data: bytes) -> Any:
        """Return the value stored as `data`, in its current form."""
        try:
            return self._opened(key_bytes, data)
        except Exception as error:
            self._store.note(error)
            raise

    def _opened(self, key_bytes: bytes, data: bytes) -> Any:
        try:
            version, inner = unseal(data)
        except StateCorruptedError as error:
            key = repr(self.codec.decode_key(key_bytes))
            raise StateCorruptedError(
                f"the value of key {key}: {error.message}", **{**error.data, "key": key}
            ) from error
        if version > self._version:
            key = repr(self.codec.decode_key(key_bytes))
            raise StateCorruptedError(
                f"the value of key {key} was written by stateVersion {version} of its bolt, this one has "
                f"{self._version}: run the version of the topology that wrote it",
                key=key,
                found=version,
                wanted=self._version,
            )
        value = super().decoded(key_bytes, inner)
        if version == self._version or self._migrate is None:
            return value
        return self._migrate(version, self.codec.decode_key(key_bytes), value)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""
        if not self._strict:
            super().put(key, value)
            return
        place = self.place(key)
        try:
            data = self._encode(value)
        except CodecError as error:
            raise of_key(error, key) from error
        self._hold(place, data)
