"""KafkaSink and KafkaSpout with TLS and passwords, at a broker that wants both; what is told where they are wrong."""

import logging
import os
import subprocess

import pytest

from statefx import TopologyBuilder
from statefx.connectors.kafka import KafkaSink, KafkaSpout, clients
from statefx.errors import ConfigError, InputError, SinkError
from statefx.testing import TopologyTester, rows
from tests.kafka.broker import KafkaBroker
from tests.kafka.libraries import java
from tests.kafka.topics import read
from tests.spouts.kafka_topologies import topology as counting

pytestmark = pytest.mark.slow

PASSWORD = "ann's-very-own-password"
STORE = ["-storepass", "changeit", "-storetype", "PKCS12", "-keystore"]
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="{}";'


MAKE = "-genkeypair -alias own -keyalg EC -dname CN=localhost -ext SAN=ip:127.0.0.1 -validity 9"
EXPORT = "-exportcert -rfc -alias own -file"

OTHER = """\
-----BEGIN CERTIFICATE-----
MIIBNzCB3aADAgECAghDrSZvfDAggDAKBggqhkjOPQQDAjAQMQ4wDAYDVQQDEwVv
dGhlcjAeFw0yNjExMjIwNjA5MDNaFw0zNjExMTkwNjA5MDNaMBAxDjAMBgNVBAMT
BW90aGVyMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE3Amnqj1JpkXESoFTXaC9
SbdSffjfORwwGaROR171HokLeVotIq2jGhgHVEUoGtZTkNBrFpcznzc9h7ffnT+w
taMhMB8wHQYDVR0OBBYEFAqMyXbV73dJ51UDbcTT2B3ua8OAMAoGCCqGSM49BAMC
A0kAMEYCIQCD8Mfc6kA60K+Nj9yQtRL+dwNlrk7kuQjGH7LJD0bJ1wIhAOeHp91B
io9pqVXc9ZG0C9e6Bn073FSa0LRC/CILs+Ah
-----END CERTIFICATE-----
"""
"""Of an authority that has signed nothing here."""


def make_certificate(folder):
    """Make a key and its certificate for the broker, own.p12, and the certificate alone, own.pem."""
    keytool = os.path.join(os.path.dirname(java()), "keytool")
    for command in (MAKE.split(), [*EXPORT.split(), "own.pem"]):
        subprocess.run([keytool, *command, *STORE, "own.p12"], cwd=folder, check=True, capture_output=True)
    (folder / "other.pem").write_text(OTHER)


@pytest.fixture(scope="module")
def secured(kafka, tmp_path_factory):  # where there is no broker at all, this one is not asked for again
    folder = tmp_path_factory.mktemp("keys")
    make_certificate(folder)
    settings = {
        "ssl.keystore.location": folder / "own.p12",
        "ssl.keystore.password": "changeit",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secured.plain.sasl.jaas.config": JAAS.format(PASSWORD),
    }
    with KafkaBroker({"SECURED": "SASL_SSL", "TLS": "SSL"}, **settings) as broker:
        broker.keys = folder
        broker.config = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(folder / "own.pem"),
        }
        yield broker


def address(broker, listener="SECURED"):
    return f"127.0.0.1:{broker.ports[listener]}"


def topology(servers, source, target, config):
    builder = TopologyBuilder("secured")
    builder.setSpout("lines", KafkaSpout(servers, source, "string", columns=["value"], config=config))
    builder.setSink("out", KafkaSink(servers, target, value="value", config=config)).shuffleGrouping("lines")
    return builder.createTopology()


def test_records_are_read_and_written_once_and_the_password_is_nowhere(secured, tmp_path, caplog, capfd):
    source, target = secured.topic(), secured.topic()
    secured.send(source, "a", "b")
    sound = topology(address(secured), source, target, secured.config)
    with caplog.at_level(logging.DEBUG), TopologyTester(sound, tmp_path / "ck") as tester:
        tester.drain()
        secured.send(source, "c")
        tester.drain()
        shown = [repr(tester.status), *(repr(each.operator) for each in sound.components)]
    assert sorted(each.value() for each in read(secured, target)) == [b"a", b"b", b"c"]
    files = [each.read_bytes() for each in (tmp_path / "ck").rglob("*") if each.is_file()]
    assert len(files) > 3
    assert not any(PASSWORD.encode() in each for each in files)
    assert PASSWORD not in "".join([caplog.text, *shown, *capfd.readouterr()])


WRONG = {
    "a wrong password": (
        "SECURED",
        {"sasl.password": "nobody's"},
        "Invalid username.*; correct sasl.username",
    ),
    "a mechanism that it has not": ("SECURED", {"sasl.mechanism": "SCRAM-SHA-256"}, "set sasl.mechanism .*one that"),
    "a wrong CA": ("SECURED", {"ssl.ca.location": "other.pem"}, "verify failed.*; ssl.ca.location in config must name"),
    "no TLS where it is wanted": ("TLS", {"security.protocol": "PLAINTEXT"}, "if it wants TLS, set security.protocol"),
    "TLS where there is none": ("PLAINTEXT", {}, "does not speak TLS: set security.protocol to PLAINTEXT"),
    "a user where none is wanted": ("PLAINTEXT", {"security.protocol": "SASL_PLAINTEXT"}, "takes no user"),
    "no user where one is wanted": ("SECURED", {"security.protocol": "SSL"}, "if it wants a user"),
}


OFTEN = ("a wrong password", "TLS where there is none")


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "wrong", [each if each in OFTEN else pytest.param(each, marks=pytest.mark.soak) for each in WRONG]
)
def test_what_is_wrong_is_told_at_the_start_with_the_address_and_the_remedy(
    secured, tmp_path, wrong, monkeypatch, capfd
):
    monkeypatch.setattr(clients, "CONNECT_SECS", 0.1)  # the failure is certain: what is left is to find its reason
    monkeypatch.setattr(clients, "START_SECS", 1.0)
    listener, changed, told = WRONG[wrong]
    servers, config = address(secured, listener), secured.config | changed
    config["ssl.ca.location"] = str(secured.keys / changed.get("ssl.ca.location", "own.pem"))
    builder = TopologyBuilder("wrong")
    builder.setStream("lines", rows("word string"))
    builder.setSink("out", KafkaSink(servers, "words", value="word", config=config)).shuffleGrouping("lines")
    with pytest.raises(SinkError, match=f"(?s)no broker answers at {servers}.*{told}") as sink:
        TopologyTester(builder.createTopology(), tmp_path / "sink")
    reads = KafkaSpout(servers, "words", "string", columns=["value"], config=config)
    with (
        TopologyTester(counting(reads), tmp_path / "spout") as tester,
        pytest.raises(InputError, match=f"(?s)no broker answers at {servers}.*{told}") as spout,
    ):
        tester.drain()
    said = "".join([str(sink.value), str(spout.value), *capfd.readouterr()])
    assert PASSWORD not in said
    assert "nobody's" not in said
    assert "|FAIL|" not in said


@pytest.mark.parametrize("make", [KafkaSink, KafkaSpout])
def test_a_file_of_certificates_that_is_not_there_is_told_before_anything_connects(make, tmp_path):
    config = {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "nowhere.pem")}
    with pytest.raises(ConfigError, match=r"ssl.ca.location .*nowhere.pem.*on the driver and on each executor"):
        make("localhost", "words", config=config)
