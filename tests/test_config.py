"""Settings: defaults, what is allowed, what is refused and how it is said."""

import pickle

import pytest

from statefx.config import SETTINGS, Config, reference_table
from statefx.errors import ConfigError


def parse(**settings):
    return Config.parse({key.replace("__", "."): value for key, value in settings.items()}, "words")


@pytest.mark.parametrize("mapping", [None, {}])
def test_defaults(mapping):
    config = Config.parse(mapping, "words")
    assert config.mapping() == {
        "topology.state.provider": "memory",
        "topology.state.provider.config": {},
        "topology.state.checkpoint.interval.ms": None,
        "topology.message.timeout.secs": 30,
        "topology.tick.tuple.freq.secs": None,
        "topology.max.spout.pending": None,
        "topology.spout.batch.ms": 50,
        "topology.sleep.spout.wait.strategy.time.ms": 1,
        "topology.acker.executors": None,
        "topology.trace": False,
        "topology.control.port": 0,
        "topology.metrics.port": None,
        "topology.metrics.host": "127.0.0.1",
        "topology.ui.port": None,
        "topology.ui.host": "127.0.0.1",
        "topology.transactional.id": "words",
        "topology.transaction.timeout.secs": 600,
        "topology.transaction.attempts.max": 8,
        "topology.transaction.retry.delay.ms": 100,
    }
    assert config.user == {}


def test_every_setting_has_an_attribute_named_after_it():
    given = {
        "topology.state.provider": "rocksdb",
        "topology.state.provider.config": {"block_cache_mb": 8},
        "topology.state.checkpoint.interval.ms": 0,
        "topology.message.timeout.secs": 1.5,
        "topology.tick.tuple.freq.secs": 2,
        "topology.max.spout.pending": 4,
        "topology.spout.batch.ms": 20,
        "topology.sleep.spout.wait.strategy.time.ms": 5,
        "topology.acker.executors": 0,
        "topology.trace": True,
        "topology.control.port": 7078,
        "topology.metrics.port": 9400,
        "topology.metrics.host": "0.0.0.0",
        "topology.ui.port": 9401,
        "topology.ui.host": "0.0.0.0",
        "topology.transactional.id": "orders",
        "topology.transaction.timeout.secs": 60,
        "topology.transaction.attempts.max": 1,
        "topology.transaction.retry.delay.ms": 0,
    }
    config = Config.parse(given, "words")
    assert config.mapping() == given
    assert config.state_provider == "rocksdb"
    assert config.state_provider_config == {"block_cache_mb": 8}
    assert config.state_checkpoint_interval_ms == 0
    assert config.message_timeout_secs == 1.5
    assert config.max_spout_pending == 4
    assert config.acker_executors == 0
    assert config.transactional_id == "orders"
    assert config.transaction_timeout_secs == 60
    assert config.transaction_attempts_max == 1
    assert config.transaction_retry_delay_ms == 0


def test_the_users_own_keys_are_kept():
    config = Config.parse({"feed.url": "http://feed", "topologies": 3}, "words")
    assert config.user == {"feed.url": "http://feed", "topologies": 3}
    assert config.mapping()["feed.url"] == "http://feed"
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("topology.state.providr", "topology.state.provider"),
        ("topology.transaction.timeout.ms", "topology.transaction.timeout.secs"),
        ("topology.message.timeout.sec", "topology.message.timeout.secs"),
        ("topology.spout.pending", "topology.max.spout.pending"),
        ("Topology.State.Provider", "topology.state.provider"),
        ("topology.transaction.retry.delay.secs", "topology.transaction.retry.delay.ms"),
        ("topology.transaction.retry.delay", "topology.transaction.retry.delay.ms"),
    ],
)
def test_an_unknown_setting_names_the_nearest(key, nearest):
    with pytest.raises(ConfigError, match=f"unknown setting '{key}'; the nearest is '{nearest}'") as caught:
        Config.parse({key: 1}, "words")
    assert (caught.value.key, caught.value.nearest) == (key, nearest)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("state.provider", "topology.state.provider"),
        ("state_provider", "topology.state.provider"),
        ("topolgy.state.provider", "topology.state.provider"),
        ("topologyStateProvider", "topology.state.provider"),
        ("state.provider.config", "topology.state.provider.config"),
        ("transaction.timeout.secs", "topology.transaction.timeout.secs"),
        ("toplogy.workers", "topology.trace"),
        ("transaction.retry.delay.ms", "topology.transaction.retry.delay.ms"),
    ],
)
def test_a_name_like_a_setting_is_not_taken_for_the_users_own(key, nearest):
    with pytest.raises(ConfigError, match=f"unknown setting '{key}'; the nearest is '{nearest}'") as caught:
        Config.parse({key: 1}, "words")
    assert (caught.value.key, caught.value.nearest) == (key, nearest)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("spark.sql.shuffle.partitions", r"a setting of Spark: give it to SparkSession\.builder\.config"),
        ("codec", r"an option of the encoding: put it into topology\.state\.provider\.config"),
    ],
)
def test_what_belongs_elsewhere_says_where(key, says):
    with pytest.raises(ConfigError, match=says) as caught:
        Config.parse({key: 1}, "words")
    assert caught.value.key == key


@pytest.mark.parametrize(
    "key", ["feed.url", "provider.name", "storage.provider", "message.timeout", "topologies", "triggers", "state"]
)
def test_other_names_are_the_users_own(key):
    assert Config.parse({key: 1}, "words").user == {key: 1}


WHOLE = "must be a whole number from"
SECONDS = "must be a number of seconds, more than 0"


@pytest.mark.parametrize(
    ("key", "values", "allowed"),
    [
        (
            "topology.state.provider",
            [5, None, "", "a b", "module:", ":Class", "a:b:c"],
            "must be the name of a registered",
        ),
        ("topology.state.checkpoint.interval.ms", [-1, 1.5, "1000", True, 2**31], f"{WHOLE} 0 to 2147483647"),
        ("topology.message.timeout.secs", [0, -1, "30", True, float("nan"), float("inf"), None], SECONDS),
        ("topology.max.spout.pending", [0, -1, 1.0, "1", True], f"{WHOLE} 1 to"),
        ("topology.spout.batch.ms", [0, -1, 1.0, "1", True, None], f"{WHOLE} 1 to"),
        ("topology.sleep.spout.wait.strategy.time.ms", [0, -1, 1.0, "1", True, None], f"{WHOLE} 1 to"),
        ("topology.acker.executors", [-1, 1.0, "1", False], f"{WHOLE} 0 to"),
        ("topology.trace", [None, 0, 1, "true"], "must be True or False"),
        ("topology.transactional.id", ["", "  ", 5, "x" * 256, "a\0", "a\ud800"], "must be a text that is not empty"),
        ("topology.transaction.timeout.secs", [0, -0.5, "600", True, None], SECONDS),
        ("topology.transaction.attempts.max", [0, 2.0, "8", None], f"{WHOLE} 1 to"),
        ("topology.transaction.retry.delay.ms", [-1, 0.5, "100", True, None], f"{WHOLE} 0 to"),
    ],
)
def test_a_wrong_value_names_key_value_and_what_is_allowed(key, values, allowed):
    for value in values:
        with pytest.raises(ConfigError, match=allowed) as caught:
            Config.parse({key: value}, "words")
        assert f"{key} is {value!r}" in str(caught.value)
        assert caught.value.key == key


@pytest.mark.parametrize("provider", ["memory", "my-store", "my.module:Provider"])
def test_a_provider_is_a_name_or_a_dotted_reference(provider):
    assert parse(topology__state__provider=provider).state_provider == provider


@pytest.mark.parametrize("value", [5, None, [], '"text"', "[1]", {1: 2}])
def test_options_that_are_no_mapping_of_texts(value):
    with pytest.raises(ConfigError, match=r"config is of type \w+; it must be a mapping with texts as keys") as caught:
        parse(topology__state__provider__config=value)
    assert caught.value.key == "topology.state.provider.config"


def test_options_may_be_json_text():
    config = parse(topology__state__provider__config='{"host": "h", "ports": [1, 2]}')
    assert config.state_provider_config == {"host": "h", "ports": [1, 2]}


def test_broken_json_says_where():
    with pytest.raises(ConfigError, match=r"topology\.state\.provider\.config is no valid JSON: .*line 1 column 14"):
        parse(topology__state__provider__config='{"host": "h" "port": 1}')


WITH_SECRET = [
    '{"url": "redis://:hunter2@host/0",}',
    '["redis://:hunter2@host/0"]',
    ["redis://:hunter2@host/0"],
    {"url": "redis://:hunter2@host/0", 5: 1},
]


@pytest.mark.parametrize(
    "mapping",
    [*({"topology.state.provider.config": each} for each in WITH_SECRET), *WITH_SECRET[:3]],
)
def test_what_is_wrong_with_options_is_said_without_their_passwords(mapping):
    with pytest.raises(ConfigError) as caught:
        Config.parse(mapping, "words")
    assert "hunter2" not in f"{caught.value!r} {caught.value} {caught.value.data}"


def test_options_are_copied():
    options = {"host": "h"}
    config = parse(topology__state__provider__config=options)
    options["host"] = "other"
    assert config.state_provider_config == {"host": "h"}
    parse().state_provider_config["host"] = "leaked"
    assert parse().state_provider_config == {}


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("topology.ackers", "topology.acker.executors"),
        ("topology.workers", "Spark's cluster"),
        ("transactional.zookeeper.servers", "submit's checkpointLocation"),
        ("storm.zookeeper.servers", "Spark's cluster"),
        ("nimbus.seeds", "Spark's cluster"),
        ("drpc.servers", "statefx.Checkpoint(location).state"),
        ("execution.checkpointing.interval", "topology.state.checkpoint.interval.ms"),
    ],
)
def test_a_foreign_setting_that_changes_nothing_is_told(key, why):
    config = Config.parse({key: 30}, "words")
    assert config.user == ({} if key.startswith("topology.") else {key: 30})
    (doubt,) = config.doubts()
    assert doubt.startswith(f"{key} has no effect: ")
    assert why in doubt
    assert list(Config.parse({}, "words").doubts()) == []


@pytest.mark.parametrize("name", ["ui", "metrics"])
def test_a_host_without_its_port_changes_nothing_and_is_told(name):
    host, port = f"topology.{name}.host", f"topology.{name}.port"
    (doubt,) = Config.parse({host: "0.0.0.0"}, "words").doubts()
    assert doubt.startswith(f"{host} has no effect, as there is no {port}: give it a port")
    assert list(Config.parse({host: "0.0.0.0", port: 0}, "words").doubts()) == []
    assert list(Config.parse({host: "127.0.0.1"}, "words").doubts()) == []


def test_settings_that_are_no_mapping():
    with pytest.raises(ConfigError, match="config must be a mapping of settings, got a str"):
        Config.parse("rocksdb", "words")


def test_a_name_that_is_no_text():
    with pytest.raises(ConfigError, match="the name of a setting is a text, not 5"):
        Config.parse({5: 1}, "words")


def test_the_reference_table_shows_every_setting():
    header, rule, *rows = reference_table().splitlines()
    assert header == "| setting | default | allowed | meaning |"
    assert rule == "|---|---|---|---|"
    assert [row.split(" | ")[0] for row in rows] == [f"| `{setting.key}`" for setting in SETTINGS]
    (timeout,) = [row for row in rows if "`topology.transaction.timeout.secs`" in row]
    assert timeout == (
        "| `topology.transaction.timeout.secs` | `600` | a number of seconds, more than 0 | "
        "How long one attempt of a transaction may take, without restoring state (up to an hour) and waiting for "
        "slots. |"
    )
    assert "| 1 transaction; any number of tuples |" in rows[5]
