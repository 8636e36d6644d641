"""Values that tell which version of their bolt wrote them, and those of older versions brought up to date."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statefx.errors import CodecError, StateCorruptedError
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.encoding.envelope import NEVER, envelope, expiry_of, unwrap, wrap
from statefx.state.encoding.guard import GuardedCodec
from statefx.state.view.overlay import WITH_TTL, Overlay, StoreReads, of_key
from statefx.state.view.pending import Kind, MemoryKey, Packed

Upgrade = Callable[[int, Any, Any], Any]
"""(version, key, value) -> the value in its current form."""

OWN_KEYS = "statefx.values."
"""What keys begin with that classes of statefx keep in a bolt's state: no bolt knows older forms of their values."""


def codec_for(codec: Codec | None, head: bytes) -> tuple[Codec, bool]:
    """Return what puts `head` before the keys of `codec`, and whether that is one that statefx did not write."""
    if codec is None or type(codec) is StandardCodec:
        return StandardCodec(head), False
    return GuardedCodec(codec, head), True


def overlay_for(
    store: StoreReads,
    codec: Codec | None,
    cache_bytes: int,
    head: bytes,
    state_version: int = 1,
    upgrade: Upgrade | None = None,
) -> Overlay:
    """Return what keeps the changes of the keys that begin with `head`: the plainest overlay that does it."""
    spaced, own = codec_for(codec, head)
    if not own and state_version == 1:
        return Overlay(store, spaced, cache_bytes, head)
    return VersionedOverlay(store, spaced, cache_bytes, head, state_version, upgrade, strict=own)


class VersionedOverlay(Overlay):
    """An overlay of values that tell their version, which is the bolt's ``stateVersion``.

    `upgrade` is called with what an older version wrote, as it is read; without it, it is shown as it was written.
    If `strict`, the codec's bytes alone are trusted, for codecs that statefx did not write: keys with equal bytes are
    one key, and a value is encoded when it is put and decoded when it is read again, also in the same transaction.
    """

    __slots__ = ("_head", "_strict", "_upgrade", "_version")

    def __init__(
        self,
        store: StoreReads,
        codec: Codec,
        cache_bytes: int,
        head: bytes,
        version: int,
        upgrade: Upgrade | None = None,
        *,
        strict: bool = False,
    ) -> None:
        super().__init__(store, codec, cache_bytes, head)
        self._version = version
        self._head = envelope(version)
        self._upgrade = upgrade
        self._strict = strict
        self._encode = self._in_envelope if version > 1 else self._as_version_1
        if strict:  # no key may be looked up as it is: the codec may make one key of several, or several of equal ones
            self.plain = frozenset()

    def _in_envelope(self, value: Any) -> bytes:
        return self._head + self.codec.encode_value(value)

    def _as_version_1(self, value: Any) -> bytes:
        return wrap(1, self.codec.encode_value(value))

    def place(self, key: Any) -> MemoryKey:
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
            return self._in_current_form(key_bytes, data)
        except Exception as error:
            self._store.failed(error)
            raise

    def _in_current_form(self, key_bytes: bytes, data: bytes) -> Any:
        try:
            version, inner = unwrap(data)
        except StateCorruptedError as error:
            key = repr(self.codec.decode_key(key_bytes))
            hint = WITH_TTL if expiry_of(data) != NEVER else ""
            raise StateCorruptedError(
                f"the value of key {key}: {error.message}{hint}", **{**error.data, "key": key}
            ) from error
        if version > self._version:  # a bolt that was rolled back to older code must not guess at a newer form
            key = repr(self.codec.decode_key(key_bytes))
            raise StateCorruptedError(
                f"the value of key {key} was written by stateVersion {version} of its bolt, this one has "
                f"{self._version}: run the version of the topology that wrote it",
                key=key,
                found=version,
                wanted=self._version,
            )
        value = super().decoded(key_bytes, inner)
        if version == self._version or self._upgrade is None:
            return value
        key = self.codec.decode_key(key_bytes)
        if isinstance(key, str) and key.startswith(OWN_KEYS):
            return value
        return self._upgrade(version, key, value)

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
        self._set_bytes(place, data)
