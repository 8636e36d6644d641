"""Encodings of users' own: what options may say, and what state does with codecs that it did not write."""

import errno
import pickle
from functools import partial

import pytest

from statefx import KeyValueState
from statefx.config import Config
from statefx.errors import CodecError, ConfigError, FailedException, StateCorruptedError, StateError
from statefx.state import EMPTY
from statefx.state.encoding.codec import StandardCodec
from statefx.state.encoding.options import Encoding, parse
from tests.testing.codecs import Broken, Extended, Json, Point

CODECS = "tests.testing.codecs:"


def encode(**options):
    return parse(options, {"count": True, "split": False})["count"]


def committed(state):
    """The state as the next transaction finds it."""
    txid = state.version.txid + 1
    state.prepareCommit(txid)
    state.commit(txid)
    return state.version


@pytest.fixture
def own(checkpoint_at, tmp_path):
    """Opens states in a folder by an encoding."""
    checkpoint = checkpoint_at(tmp_path)
    return lambda version=EMPTY, **options: checkpoint.open(version, codec=encode(**options).build())


# ---- what options may say


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "statefx-1"),
        ({"codec": CODECS + "Json"}, "json-1"),
        ({"codec": "statefx.state.encoding.codec:StandardCodec"}, "statefx-1"),
        ({"keyClass": "str", "valueClass": "int"}, "statefx-1"),
        ({"codec": CODECS + "Json", "keyClass": "str"}, "json-1"),
        ({"valueSerializerClass": CODECS + "Points"}, f"key statefx-1, value {CODECS}Points"),
        (
            {"keySerializerClass": CODECS + "Pickled", "valueSerializerClass": CODECS + "Points"},
            f"key pickled, value {CODECS}Points",
        ),
    ],
)
def test_the_identity_is_that_of_the_bytes(options, name):
    encoding = encode(**options)
    assert encoding.name == encoding.build().name == name
    assert pickle.loads(pickle.dumps(encoding)) == encoding


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"codec": "json"}, "'json' is not a reference: write 'module:Class'"),
        ({"codec": 7}, "codec is 7; give a class as 'module:Class'"),
        ({"codec": "tests.testing.codex:Json"}, r"can't be imported: ModuleNotFoundError.*on every executor"),
        ({"codec": CODECS + "Jsn"}, r"has no Jsn; did you mean 'Json'\?"),
        ({"codec": CODECS + "Points"}, "is not a subclass of statefx.state.Codec"),
        ({"codec": CODECS + "function"}, "is not a class"),
        ({"codec": CODECS + "Nameless"}, r"does not define name \(a text\)"),
        ({"codec": CODECS + "Abstract"}, "does not define decode_key, decode_value, encode_value"),
        ({"codec": CODECS + "Impostor"}, "has the name of the standard codec.*one of its own"),
        ({"codec": "__main__:Json"}, "is in the script that is run, which workers don't import: move the class"),
        ({"keySerializerClass": "__main__:Points"}, "is in the script that is run, which workers don't import"),
        ({"valueClass": "__main__:Point"}, "is in the script that is run, which workers don't import"),
        ({"codec": CODECS + "Choosy"}, "is made without arguments, but missing a required argument: 'schema'"),
        ({"keySerializerClass": CODECS + "Half"}, "serializer tests.testing.codecs:Half does not define deserialize"),
        ({"valueClass": "string"}, "'string' is no builtin type; .*'module:Class'"),
        ({"valueClass": "len"}, "'len' is no builtin type"),
        (
            {"codec": CODECS + "Json", "valueSerializerClass": CODECS + "Points"},
            "codec and valueSerializerClass exclude each other",
        ),
        ({"components": {"cuont": {}}}, r"'cuont', which is not in the topology; did you mean 'count'\?"),
        ({"components": {"split": {}}}, "'split', which keeps no state"),
        ({"components": ["count"]}, "it must be a mapping"),
        ({"components": {"count": "msgpack"}}, "'count': 'msgpack' is not a mapping"),
        ({"components": {"count": {"kodec": "a:B"}}}, r"'count': there is no option 'kodec'; did you mean 'codec'\?"),
        ({"components": {"count": {"codec": CODECS + "Half"}}}, "components, 'count': codec tests.testing.codecs:Half"),
    ],
)
def test_a_mistake_is_found_on_the_driver(options, says):
    with pytest.raises(ConfigError, match=rf"topology\.state\.provider\.config: .*{says}"):
        encode(**options)


def test_a_bolt_of_its_own_takes_nothing_of_the_common_options():
    found = parse(
        {"keyClass": "str", "components": {"b": {"codec": CODECS + "Json"}, "c": {}}},
        {"a": True, "b": True, "c": True, "d": False},
    )
    assert {id: dict(encoding.classes) for id, encoding in found.items()} == {
        "a": {"keyClass": "str"},
        "b": {"codec": CODECS + "Json"},
        "c": {},
    }


def test_the_provider_does_not_see_them():
    given = {"dir": "/tmp", "codec": "a:B", "components": {"count": {"keyClass": "str"}}}
    config = Config.parse({"topology.state.provider.config": given}, "words")
    assert config.state_provider_config == {"dir": "/tmp"}
    assert config.state_encoding == {"codec": "a:B", "components": {"count": {"keyClass": "str"}}}
    assert config.mapping()["topology.state.provider.config"] == given


def test_a_codec_whose_constructor_fails_is_named():
    encoding = encode(codec=CODECS + "Failing")
    with pytest.raises(ConfigError, match=r"tests\.testing\.codecs:Failing can't be made: OSError: no schema registry"):
        encoding.build()


# ---- what state does with them


def test_serializers_take_types_that_the_standard_codec_refuses(own):
    options = {"keySerializerClass": CODECS + "Points", "valueSerializerClass": CODECS + "Pickled"}
    state = own(**options)
    state.put(Point(1, 2), {Point(0, 0)})
    assert state.get(Point(1, 2)) == {Point(0, 0)}
    version = committed(state)
    again = own(version, **options)
    assert list(again.items()) == [(Point(1, 2), {Point(0, 0)})]
    assert dict(again.getAll([Point(1, 2), Point(3, 4)])) == {Point(1, 2): {Point(0, 0)}}
    assert Point(1, 2) in again
    assert again.delete(Point(1, 2)) == {Point(0, 0)}
    assert list(again.items()) == []


def test_a_value_is_read_in_its_own_transaction_as_it_is_afterwards(own):
    state = own(codec=CODECS + "Json")
    state.put("a", (1, 2))
    state.put("b", 1)
    assert state.get("a") == [1, 2], "JSON has no tuples"
    version = committed(state)
    assert dict(own(version, codec=CODECS + "Json").items()) == {"a": [1, 2], "b": 1}


def test_keys_with_equal_bytes_are_one_key(own):
    state = own(codec=CODECS + "Json")
    state.put("To", 1)
    state.prefetch(["TO", "be"])
    assert state.get("TO") == 1
    state.put("to", 2)
    assert dict(state.getAll(["TO", "to"])) == {"to": 2}
    version = committed(state)
    again = own(version, codec=CODECS + "Json")
    again.prefetch(["to", "tO"])
    assert list(again.items()) == [("to", 2)]
    assert again.get("tO") == 2


@pytest.mark.parametrize(
    ("kind", "thing", "fine"),
    [
        ("int", 1, True),
        ("int", True, False),
        ("int", 1.0, False),
        ("float", 1, False),
        ("datetime:date", None, False),
        ("object", [1], True),
        ("list", [1], True),
        ("tuple", "a", False),
    ],
)
def test_a_value_of_another_class_is_refused_as_it_is_put(own, kind, thing, fine):
    state = own(valueClass=kind)
    if fine:
        state.put("a", thing)
        assert state.get("a") == thing
        return
    with pytest.raises(CodecError, match=f"key 'a': a value of type {type(thing).__name__}, but valueClass is") as told:
        state.put("a", thing)
    assert (told.value.key, told.value.type, told.value.path) == ("'a'", type(thing).__name__, "value")
    assert "a" not in state


def test_a_key_of_another_class_is_refused(own):
    state = own(keyClass="str")
    with pytest.raises(CodecError, match=r"a key of type int, but keyClass is str.*key 1") as told:
        state.get(1)
    assert (told.value.key, told.value.type) == ("1", "int")


def test_classes_change_no_bytes(own, checkpoint_at, tmp_path):
    state = own(keyClass="str", valueClass="int")
    state.put("a", 1)
    version = committed(state)
    assert dict(checkpoint_at(tmp_path).open(version).items()) == {"a": 1}


@pytest.mark.parametrize("kind", [list, str])
def test_what_encoding_raises_names_key_and_type(checkpoint_at, tmp_path, kind):
    state = checkpoint_at(tmp_path).open(codec=Broken())
    state.put("a", 1)
    wrong = {list: [{1}], str: "no bytes"}[kind]
    with pytest.raises(CodecError, match=f"key 'a': value of type {kind.__name__}: codec 'broken'") as told:
        state.put("a", wrong)
    assert (told.value.key, told.value.type) == ("'a'", kind.__name__)
    with pytest.raises(CodecError, match="key of type int: codec 'broken' can't encode it: AttributeError") as told:
        state.put(7, 1)
    assert (told.value.key, told.value.type, told.value.path) == ("7", "int", "key")
    state.rollback()
    assert list(state.items()) == []


def test_what_decoding_raises_is_damage_that_names_the_key(checkpoint_at, tmp_path):
    checkpoint = checkpoint_at(tmp_path)
    state = checkpoint.open(codec=Json())
    state.put("a", "unreadable")
    version = committed(state)
    for read in (lambda s: s.get("a"), lambda s: list(s.items()), lambda s: s.prefetch(["a"])):
        broken = checkpoint.open(version, codec=Broken())
        with pytest.raises(StateCorruptedError, match=r"the value of key 'a': .*by codec 'broken': KeyError") as told:
            read(broken)
        assert told.value.key == "'a'"


class Weak(Json):
    """Raises what it is told to."""

    name = "weak"

    def __init__(self, raised, *calls):
        for call in calls:
            setattr(self, call, partial(self._raise, raised))

    def _raise(self, raised, thing):
        raise raised


REACHED = [
    ConnectionError("the schema registry is down"),
    TimeoutError("too slow"),
    OSError(errno.ENOSPC, "no space left"),
]


@pytest.mark.parametrize("raised", REACHED, ids=lambda raised: type(raised).__name__)
def test_what_a_codec_cannot_reach_is_no_damage(checkpoint_at, tmp_path, raised):
    checkpoint = checkpoint_at(tmp_path)
    state = checkpoint.open(codec=Json())
    state.put("a", 1)
    version = committed(state)

    def attempted(call, do, verb, what):
        weak = checkpoint.open(version, codec=Weak(raised, call))
        says = f"codec 'weak' could not {verb} a {what}: {type(raised).__name__}: .*{raised.args[-1]}"
        with pytest.raises(StateError, match=says) as told:
            do(weak)
        assert type(told.value) is StateError
        assert told.value.__cause__ is raised

    attempted("encode_key", lambda s: s.get("a"), "encode", "key")
    attempted("encode_key", lambda s: s.prefetch(["a"]), "encode", "key")
    attempted("encode_value", lambda s: s.put("b", 1), "encode", "value")
    attempted("decode_value", lambda s: s.get("a"), "decode", "value")
    attempted("decode_value", lambda s: s.prefetch(["a"]), "decode", "value")
    attempted("decode_key", lambda s: list(s.items()), "decode", "key")


class Unsteady(Json):
    """A codec that can't reach what it needs, once, at the `fails`-th of some calls."""

    def __init__(self, call, fails=1):
        self.left = fails
        self._call = getattr(self, call)
        setattr(self, call, self._try)

    def _try(self, thing):
        self.left -= 1
        if not self.left:
            raise ConnectionError("the schema registry is down")
        return self._call(thing)


def with_ttl(state):
    return state.map("t", ttl="1 day")


READS = {
    "get": ("decode_value", lambda s: s.get("a")),
    "get of a key": ("encode_key", lambda s: s.get("a")),
    "getAll": ("encode_key", lambda s: s.getAll(["a"])),
    "prefetch": ("encode_key", lambda s: s.prefetch(["a"])),
    "keys that were found": ("decode_key", lambda s: list(s.getAll(["a", "b"]))),
    "a key among those": ("encode_key", lambda s: s.getAll([]).get("a")),
    "items": ("decode_key", lambda s: list(s.items())),
    "items from a key": ("encode_key", lambda s: s.items("a")),
    "items of a map": ("decode_key", lambda s: list(s.map("m").items())),
    "items of a map with a ttl": ("decode_key", lambda s: list(with_ttl(s).items())),
    "deleteRange": ("decode_key", lambda s: s.deleteRange(None, None)),
    "deleteRange of a map with a ttl": ("decode_key", lambda s: with_ttl(s).deleteRange(None, None)),
}


@pytest.fixture
def filled(checkpoint_at, tmp_path):
    """Opens a state with some entries by a codec."""
    checkpoint = checkpoint_at(tmp_path)
    state = checkpoint.open(codec=Json(), clock_ms=0)
    for entries in (state, state.map("m"), with_ttl(state)):
        entries.putAll({"a": 1, "b": 2})
    version = committed(state)
    return lambda codec: checkpoint.open(version, codec=codec, clock_ms=0)


@pytest.mark.parametrize(("call", "read"), READS.values(), ids=READS)
def test_nothing_is_prepared_where_a_codec_could_not_read(filled, call, read):
    """``except Exception: count = 0``, as with a store that is down."""
    state = filled(Unsteady(call))
    with pytest.raises(StateError, match="the schema registry is down"):
        read(state)
    with pytest.raises(StateError, match="the schema registry is down"):
        committed(state)


@pytest.mark.parametrize("of", [lambda s: s, with_ttl], ids=["state", "map with a ttl"])
def test_a_delete_range_that_fails_deletes_nothing(filled, of):
    state = filled(Unsteady("decode_key", fails=2))
    with pytest.raises(StateError, match="the schema registry is down"):
        of(state).deleteRange(None, None)
    assert dict(of(state).items()) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "raised", [FailedException("not now"), MemoryError()], ids=lambda raised: type(raised).__name__
)
def test_what_says_nothing_of_the_codec_stays_what_it_is(checkpoint_at, tmp_path, raised):
    checkpoint = checkpoint_at(tmp_path)
    state = checkpoint.open(codec=Json())
    state.put("a", 1)
    version = committed(state)
    for call, do in (("encode_value", lambda s: s.put("b", [1])), ("decode_value", lambda s: s.get("a"))):
        with pytest.raises(type(raised)) as told:
            do(checkpoint.open(version, codec=Weak(raised, call)))
        assert told.value is raised


def test_a_codec_derived_from_the_standard_one_is_not_bypassed(checkpoint_at, tmp_path):
    checkpoint = checkpoint_at(tmp_path)
    state = checkpoint.open(codec=Extended())
    state.put("a", 1)
    version = committed(state)
    assert checkpoint.store(version).get([b"u" + StandardCodec().encode_key("a")]) == [b"+\x01"]


def test_the_standard_codec_pays_nothing(checkpoint_at, tmp_path):
    from statefx.state.view.changes import Overlay

    state = checkpoint_at(tmp_path).open()
    assert type(state._overlay) is Overlay
    assert type(state._overlay.codec) is StandardCodec
    assert isinstance(state, KeyValueState)


def test_an_encoding_shows_what_decides_the_bytes():
    encoding = Encoding({"keyClass": "str", "codec": CODECS + "Json"})
    assert encoding.own == {"codec": CODECS + "Json"}
