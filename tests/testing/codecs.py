"""Codecs and serializers of users' own."""

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statefx.state import Codec
from statefx.state.encoding.codec import StandardCodec


class Marked(Codec):
    """Everything state can hold, in bytes that begin as an envelope does."""

    name = "marked"

    def __init__(self) -> None:
        self._standard = StandardCodec()

    def encode_key(self, key: Any, /) -> bytes:
        return b"k" + self._standard.encode_key(key)

    def decode_key(self, data: bytes, /) -> Any:
        assert data[:1] == b"k"
        return self._standard.decode_key(data[1:])

    def encode_value(self, value: Any, /) -> bytes:
        return b"\xc1" + self._standard.encode_value(value)

    def decode_value(self, data: bytes, /) -> Any:
        assert data[:1] == b"\xc1"
        return self._standard.decode_value(data[1:])


class Json(Codec):
    name = "json-1"

    def encode_key(self, key: Any, /) -> bytes:
        return key.lower().encode()

    def decode_key(self, data: bytes, /) -> str:
        return data.decode()

    def encode_value(self, value: Any, /) -> bytes:
        return json.dumps(value, sort_keys=True).encode()

    def decode_value(self, data: bytes, /) -> Any:
        return json.loads(data)


class Backwards(Json):
    name = "backwards"

    def encode_key(self, key: Any, /) -> bytes:
        return bytes(255 - byte for byte in key.encode())

    def decode_key(self, data: bytes, /) -> str:
        return bytes(255 - byte for byte in data).decode()


class JsonMoved(Json):
    """The same format, in another class."""


class JsonTwo(Json):
    name = "json-2"


class Broken(Json):
    name = "broken"

    def encode_value(self, value: Any, /) -> Any:
        return [] if value == "no bytes" else super().encode_value(value)

    def decode_value(self, data: bytes, /) -> Any:
        if data == b'"unreadable"':
            raise KeyError("unreadable")
        return super().decode_value(data)


@dataclass(frozen=True)
class Point:
    x: int
    y: int


class Points:
    def serialize(self, thing: Any) -> bytes:
        return f"{thing.x},{thing.y}".encode()

    def deserialize(self, data: bytes) -> Point:
        return Point(*map(int, data.split(b",")))


class Pickled:
    name = "pickled"

    def serialize(self, thing: Any) -> bytes:
        return pickle.dumps(thing)

    def deserialize(self, data: bytes) -> Any:
        return pickle.loads(data)


class Registered(Json):
    name = "registered"
    outages = ""

    def decode_value(self, data: bytes, /) -> Any:
        path = Path(self.outages)
        left = path.read_text(encoding="ascii").splitlines()
        if left:
            path.write_text("\n".join(left[1:]), encoding="ascii")
            raise ConnectionError(left[0])
        return super().decode_value(data)


class Extended(StandardCodec):
    """Derived from the standard one, with another value format."""

    name = "extended"

    def encode_value(self, value: Any, /) -> bytes:
        return b"+" + super().encode_value(value)

    def decode_value(self, data: bytes, /) -> Any:
        return super().decode_value(data[1:])


class Nameless(Json):
    name = ""


class Impostor(Json):
    name = StandardCodec.name


class Abstract(Codec):
    name = "abstract"

    def encode_key(self, key: Any, /) -> bytes:
        return b""


class Choosy(Json):
    name = "choosy"

    def __init__(self, schema: Any) -> None:
        self.schema = schema


class Failing(Json):
    name = "failing"

    def __init__(self) -> None:
        raise OSError("no schema registry")


class Half:
    def serialize(self, thing: Any) -> bytes:
        return b""


def function() -> None:
    pass
