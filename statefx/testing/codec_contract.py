"""The conformance suite of codecs, shipped for those who write one; needs the extra ``testing``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from statefx.state.encoding.codec import Codec
from statefx.state.encoding.values import is_settled
from statefx.testing.contract import Contract


class CodecContract(Contract):
    """The contract of codecs, as pytest tests.

    Subclass it in a test module, and define the fixture ``codec``. No test may be overridden.

    Attributes
    ----------
    keys : sequence
        Keys that differ from each other, in the order in which ``items`` has to yield them.
    values : sequence
        Some of each kind that the bolt puts.

    Examples
    --------
    ::

        class TestMyCodec(CodecContract):
            keys = ["", "a", "ab", "b"]
            values = [0, {"seen": [1, 2]}]

            @pytest.fixture
            def codec(self):
                return MyCodec()
    """

    keys: Sequence[Any] = ()
    values: Sequence[Any] = ()

    def test_it_has_a_name_and_samples(self, codec: Codec) -> None:
        assert isinstance(codec.name, str)
        assert codec.name
        assert len(self.keys) > 1, "give the class attribute keys"
        assert self.values, "give the class attribute values"

    def test_keys_come_back_equal_and_of_the_same_type(self, codec: Codec) -> None:
        for key in self.keys:
            data = codec.encode_key(key)
            assert type(data) is bytes
            found = codec.decode_key(data)
            assert (type(found), found) == (type(key), key)

    def test_values_come_back_equal_and_of_the_same_type(self, codec: Codec) -> None:
        for value in self.values:
            data = codec.encode_value(value)
            assert type(data) is bytes
            found = codec.decode_value(data)
            assert (type(found), found) == (type(value), value)

    def test_a_key_has_the_same_bytes_from_every_codec_of_the_class(self, codec: Codec) -> None:
        other = type(codec)()
        for key in self.keys:
            assert codec.encode_key(key) == codec.encode_key(key) == other.encode_key(key)

    def test_what_one_codec_of_the_class_wrote_another_reads(self, codec: Codec) -> None:
        other = type(codec)()
        for value in self.values:
            assert other.decode_value(codec.encode_value(value)) == value

    def test_different_keys_have_different_bytes(self, codec: Codec) -> None:
        assert len({codec.encode_key(key) for key in self.keys}) == len(self.keys)

    def test_bytes_order_as_the_keys_do(self, codec: Codec) -> None:
        for lower, higher in pairwise(self.keys):
            assert codec.encode_key(lower) < codec.encode_key(higher), f"{lower!r} must come before {higher!r}"

    def test_reading_makes_new_objects(self, codec: Codec) -> None:
        for value in self.values:
            data = codec.encode_value(value)
            first, second = codec.decode_value(data), codec.decode_value(data)
            assert is_settled(first) or first is not second, f"{value!r} would be changed through what get returns"
