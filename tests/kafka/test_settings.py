"""What KafkaSink and KafkaSpout refuse of servers and settings, before anything connects."""

import pickle
import re

import pytest

from statefx.connectors.kafka import KafkaSink, KafkaSpout
from statefx.connectors.kafka.topic import TopicLimits
from statefx.errors import ConfigError


def clients(made):
    return made.publisher.clients if isinstance(made, KafkaSink) else made.clients


BOTH = pytest.mark.parametrize("make", [KafkaSink, KafkaSpout])


@BOTH
@pytest.mark.parametrize(
    "servers", ["localhost", "a:1,b:2", "a.b:9092, c_d", "[::1]:9092", "10.0.0.1", "PLAINTEXT://a:1"]
)
def test_servers_as_the_client_takes_them(make, servers):
    assert clients(make(servers, "words")).servers == ",".join(sorted(servers.replace(" ", "").split(",")))


@BOTH
@pytest.mark.parametrize(
    ("servers", "told"),
    [
        ("", "a text such as 'host:9092'"),
        (" , ", "a text such as"),
        (None, "not None"),
        (["a:1"], "a text such as"),
        ("a:1,b:x", "'b:x', which is no address"),
        ("a:70000", "no address"),
        ("a b:1", "no address"),
        ("http://a:9092", "leave 'http://' out"),
        ("SSL://a:9092", "leave 'SSL://' out; security.protocol in config"),
    ],
)
def test_servers_that_can_not_be_any(make, servers, told):
    with pytest.raises(ConfigError, match=f"{make.__name__}'s servers .*{re.escape(told)}"):
        make(servers, "words")


@BOTH
@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"sasl.pasword": "x"}, "'sasl.pasword', which librdkafka does not know: do you mean 'sasl.password'?"),
        ({"no.such.setting": 1}, "'no.such.setting', which librdkafka does not know"),
        ({"security.protocol": "pigeon"}, 'Invalid value "pigeon"'),
        ({"socket.timeout.ms": "soon"}, '"socket.timeout.ms"'),
        ({"socket.timeout.ms": -5}, "outside allowed range"),
        ({"socket.timeout.ms": None}, "as NoneType: it is a text, a number or a bool"),
        ({"oauth_cb": "token"}, "as str: it is a function"),
        ({7: "x"}, "settings are named by texts"),
        ([], "a dict of librdkafka's settings"),
        ({"bootstrap.servers": "x"}, "servers= says it"),
        ({"group.id": "x"}, "can't have 'group.id': "),
        ({"isolation.level": "x"}, "can't have 'isolation.level': "),
        ({"enable.auto.commit": True}, "can't have 'enable.auto.commit': "),
        ({"topic.enable.auto.commit": True}, "can't have 'topic.enable.auto.commit': "),
        ({"default.topic.config": {"auto.offset.reset": "earliest"}}, "'default.topic.config' as dict"),
        ({"logger": None}, "statefx.kafka"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.username and sasl.password must be set"),
        ({"log_level": "loud"}, '"log_level"'),
        ({"log_level": 9}, "outside allowed range"),
        ({"ssl.key.location": "probe"}, "'probe': it must be on the driver"),
        ({"ssl.ca.location": "nowhere.pem"}, "'nowhere.pem': it must be on the driver and on each executor"),
    ],
)
def test_settings_that_can_not_be_used(make, config, told):
    with pytest.raises(ConfigError, match=f"{make.__name__}.*{re.escape(told)}"):
        make("localhost", "words", config=config)


@BOTH
def test_certificates_of_the_system_are_no_file(make, capfd):
    config = {"security.protocol": "SSL", "ssl.ca.location": "probe", "log_level": 7}
    assert clients(make("localhost", "words", config=config)).setting("ssl.ca.location", "") == "probe"
    assert capfd.readouterr().err == ""  # the trial of the settings logs nothing


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"acks": "1"}, "'acks': a transaction of Kafka needs all"),
        ({"message.max.bytes": 9}, "the topic's max.message.bytes"),
        ({"max.in.flight": 10}, "must be set <= 5"),
        ({"message.timeout.ms": 70_000}, "'message.timeout.ms': give transactionTimeoutSecs"),
    ],
)
def test_settings_that_a_transaction_does_not_allow(config, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        KafkaSink("localhost", "words", config=config)


def token(config):
    raise AssertionError("nobody is asked before there is a broker")


@BOTH
def test_what_is_a_users_stays_and_goes_to_the_tasks(make):
    config = {"client.id": "mine", "compression.type": "zstd", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token}
    sent = pickle.loads(pickle.dumps(make("localhost", "words", config={**config, "security.protocol": "SASL_SSL"})))
    settings = clients(sent)._settings()
    assert {name: settings[name] for name in config} == config


@BOTH
@pytest.mark.parametrize(("own", "most_ms"), [(None, 5_000), ("3000", 3_000), (30_000, 5_000)])
def test_a_broker_that_hangs_is_left_when_nobody_waits_for_its_answer_any_more(make, own, most_ms, monkeypatch):
    made = clients(make("localhost", "words", config={"socket.timeout.ms": own} if own else None))
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", dict)
    assert made.admin(5.0)["socket.timeout.ms"] == most_ms


PAST, FUTURE, BOTH_TIMES = (f"message.timestamp.{name}.max.ms" for name in ("before", "after", "difference"))
NO_LIMIT = 2**63 - 1


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ({}, (NO_LIMIT, 3_600_000)),  # nobody may read them
        ({PAST: NO_LIMIT, FUTURE: 3_600_000}, (NO_LIMIT, 3_600_000)),  # Kafka 4
        ({PAST: NO_LIMIT, FUTURE: NO_LIMIT}, (NO_LIMIT, NO_LIMIT)),
        ({BOTH_TIMES: NO_LIMIT}, (NO_LIMIT, NO_LIMIT)),  # 3.5
        ({BOTH_TIMES: 1000}, (1000, 1000)),
        ({PAST: NO_LIMIT, FUTURE: NO_LIMIT, BOTH_TIMES: NO_LIMIT}, (NO_LIMIT, NO_LIMIT)),  # 3.6 to 3.9
        ({PAST: NO_LIMIT, FUTURE: NO_LIMIT, BOTH_TIMES: 1000}, (1000, 1000)),
        ({PAST: 500, FUTURE: NO_LIMIT, BOTH_TIMES: 1000}, (500, 1000)),
        ({PAST: NO_LIMIT, FUTURE: 2000, BOTH_TIMES: 1000}, (1000, 2000)),
    ],
)
def test_how_far_times_may_be_from_the_clock_of_each_kind_of_broker(settings, limits):
    found = TopicLimits.of(1, {name: str(value) for name, value in settings.items()})
    assert (found.past_ms_max, found.future_ms_max) == limits
