"""The envelope of a value, which tells the version of the bolt that wrote it.

A value of version 1 lies as its codec wrote it. One of a later version, and one whose own bytes begin with the mark,
has an envelope: the mark, the version as a varint (7 bits a byte, low ones first), the codec's bytes. The standard
codec's bytes never begin with the mark, so bolts of version 1 pay nothing.

A value that is over at a time has that before all this: the mark, a zero, which is no version, and the milliseconds
since the epoch in 8 bytes, high ones first.
"""

from __future__ import annotations

from statefx.errors import StateCorruptedError

MARK = b"\xc1"
"""The one byte that msgpack never uses."""

VERSION_MAX = 2**31 - 1
_VARINT_BYTES_MAX = 5


def wrap(version: int, data: bytes) -> bytes:
    r"""Return the bytes that are stored for a value of a version.

    >>> wrap(1, b"plain"), wrap(300, b"x")
    (b'plain', b'\xc1\xac\x02x')
    """
    if version == 1 and data[:1] != MARK:
        return data
    return envelope(version) + data


def envelope(version: int) -> bytes:
    """Return the prefix of the bytes of a value of `version`."""
    head = bytearray(MARK)
    while version > 0x7F:
        head.append(version & 0x7F | 0x80)
        version >>= 7
    head.append(version)
    return bytes(head)


_EXPIRES = MARK + b"\x00"
EXPIRY_BYTES = 10
"""What stands before a value that is over at a time."""

NEVER = 2**63
"""When a value is over that has no such time."""


def expiring(expiry_ms: int) -> bytes:
    """Return the prefix of the stored bytes of a value that is over at `expiry_ms`."""
    return _EXPIRES + expiry_ms.to_bytes(8, "big")


def expiry_of(data: bytes) -> int:
    r"""Return when a value is over, as it is stored: in milliseconds since the epoch, or `NEVER`.

    >>> expiry_of(expiring(1000) + b"x"), expiry_of(b"x") == NEVER
    (1000, True)
    """
    if not data.startswith(_EXPIRES) or len(data) < EXPIRY_BYTES:  # damaged: whoever decodes it says so
        return NEVER
    return int.from_bytes(data[2:EXPIRY_BYTES], "big")


def unwrap(data: bytes) -> tuple[int, bytes]:
    """Return version and codec's bytes of a stored value; StateCorruptedError if the envelope is damaged."""
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
