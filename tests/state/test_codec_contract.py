"""The contract that is shipped for codecs: it passes what is right, and finds what is wrong."""

import pytest

from statefx.state.encoding.codec import StandardCodec
from statefx.testing.codec_contract import CodecContract
from tests.testing.codecs import Json, Marked


class TestStandard(CodecContract):
    keys = [None, False, True, -1, 0, 1, "", "a", "ab", b"", (1, "a"), (1, "b")]
    values = [None, 0, "a", [1, {"a": (1, 2)}], (1, [2])]

    @pytest.fixture
    def codec(self):
        return StandardCodec()


class TestMarked(CodecContract):
    keys = [-1, 0, 1, "a"]
    values = [1, [2]]

    @pytest.fixture
    def codec(self):
        return Marked()


class TestJson(CodecContract):
    keys = ["", "a", "ab", "b"]
    values = [None, 1, "a", [1], {"a": [1]}]

    @pytest.fixture
    def codec(self):
        return Json()


_shared = []


class Backwards(Json):
    def encode_key(self, key):
        return bytes(255 - byte for byte in key.encode())


class Sharing(Json):
    def decode_value(self, data):
        return _shared


class Rounding(Json):
    def encode_value(self, value):
        return super().encode_value(int(value))


class ByIdentity(Json):
    def encode_key(self, key):
        return f"{id(self)} {key}".encode()

    def decode_key(self, data):
        return data.split(b" ", 1)[1].decode()


@pytest.mark.parametrize(
    ("codec", "test", "keys", "values"),
    [
        (Backwards, "test_bytes_order_as_the_keys_do", ["a", "b"], [1]),
        (Json, "test_different_keys_have_different_bytes", ["a", "A"], [1]),
        (Json, "test_keys_come_back_equal_and_of_the_same_type", ["A", "b"], [1]),
        (Json, "test_values_come_back_equal_and_of_the_same_type", ["a", "b"], [(1, 2)]),
        (Rounding, "test_values_come_back_equal_and_of_the_same_type", ["a", "b"], [1.5]),
        (Sharing, "test_reading_makes_new_objects", ["a", "b"], [[1]]),
        (ByIdentity, "test_a_key_has_the_same_bytes_from_every_codec_of_the_class", ["a", "b"], [1]),
        (Json, "test_it_has_a_name_and_samples", [], [1]),
    ],
)
def test_what_is_wrong_is_found(codec, test, keys, values):
    contract = type("Wrong", (CodecContract,), {"keys": keys, "values": values})()
    with pytest.raises(AssertionError):
        getattr(contract, test)(codec())


def test_no_test_may_be_overridden():
    with pytest.raises(TypeError, match="overrides test_bytes_order_as_the_keys_do: the contract holds as a whole"):
        type("Lax", (CodecContract,), {"test_bytes_order_as_the_keys_do": None})
