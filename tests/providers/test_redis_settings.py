"""The redis provider's options: checked on the driver, and never showing a password."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from typing import Any

import pytest

from statefx.errors import ConfigError, ProviderError
from statefx.state.registry import load_provider
from statefx_redis import RedisStateProvider
from statefx_redis.settings import Settings


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"host": "localhost", "port": 6379, "database": 0, "tls": None, "password": ""}),
        ({"url": "redis://h"}, {"host": "h", "port": 6379}),
        (
            {"url": "redis://u:p%40ss@h:1/5"},
            {"host": "h", "port": 1, "database": 5, "username": "u", "password": "p@ss"},
        ),
        ({"url": "redis://:p@[::1]:1"}, {"host": "::1", "username": "", "password": "p"}),
        ({"url": "redis://h?db=4"}, {"database": 4}),
        ({"url": "rediss://h"}, {"tls": ()}),
        ({"url": "rediss://h?ssl_ca_certs=/ca.pem"}, {"tls": (("ssl_ca_certs", "/ca.pem"),)}),
        ({"url": "unix:///run/r.sock?db=1"}, {"path": "/run/r.sock", "database": 1}),
        ({"url": "redis://:a@h", "password": "b"}, {"password": "b"}),
        (
            {"jedisPoolConfig": {"host": "h", "port": 1, "timeout": 1500, "password": "p", "database": 2}},
            {"host": "h", "port": 1, "timeout_secs": 1.5, "password": "p", "database": 2},
        ),
        ({"jedisPoolConfig": {"timeout": 1500}, "timeout_secs": 9}, {"timeout_secs": 9}),
    ],
)
def test_what_options_mean(options: dict[str, Any], expected: dict[str, Any]) -> None:
    found = Settings.of(options)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pasword": "hunter2"}, "did you mean 'password'"),
        ({"url": 7}, "url: expected `str`, got `int`"),
        ({"url": "http://:hunter2@h"}, "url must be like redis://"),
        ({"url": "redis://:hunter2@h:port"}, "url must be like redis://"),
        ({"url": "redis://:hunter2@h/name"}, "url must be like redis://"),
        ({"url": "redis://:hunter2@h?timeout=1"}, "not known: timeout"),
        ({"url": "unix://"}, "url must be like redis://"),
        ({"url": "redis://h", "jedisPoolConfig": {}}, "both say where"),
        (
            {"jedisPoolConfig": {"hosts": "h", "password": "hunter2"}},
            "contains unknown field `hosts`",
        ),
        ({"jedisPoolConfig": {"port": "6379"}}, r"jedisPoolConfig\.port: expected `int`"),
        ({"jedisPoolConfig": "hunter2"}, "jedisPoolConfig: expected `object`"),
        ({"username": "u"}, "username needs a password"),
        ({"password": 5}, "password: expected `str`"),
        ({"timeout_secs": 0}, "timeout_secs: expected `float` > 0"),
        ({"timeout_secs": True}, "timeout_secs: expected `float`, got `bool`"),
        ({"retries": -1}, "retries: expected `int` >= 0"),
        ({"backoff_secs": "1"}, "backoff_secs: expected `float`"),
        ({"prefix": "a{b"}, "prefix must not hold braces"),
        ({"cluster": 1}, "cluster: expected `bool`"),
        ({"cluster": True, "url": "redis://h/1"}, "database 0 only"),
    ],
)
def test_what_is_wrong_is_said_on_the_driver_without_the_password(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load_provider("statefx_redis:RedisStateProvider", options)
    assert "topology.state.provider.config" in str(caught.value)
    assert "hunter2" not in f"{caught.value} {caught.value!r} {caught.value.data}"


@pytest.mark.parametrize(
    "options",
    [
        {"url": "redis://user:hunter2@h/0"},
        {"username": "u", "password": "hunter2"},
        {"jedisPoolConfig": {"host": "h", "password": "hunter2"}},
    ],
)
def test_a_password_is_never_shown(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    provider = RedisStateProvider(options)
    again = pickle.loads(pickle.dumps(provider))
    assert again.options == provider.options == options
    assert again._settings == provider._settings
    for each in (provider, again):
        with caplog.at_level(logging.DEBUG):
            logging.getLogger("statefx").warning("%s %s %r", each.options, each._settings, vars(each))
        shown = [str(each.options), repr(each._settings), f"{each._settings.password}", str(vars(each)), caplog.text]
        shown += [f"{each.options.get('url')}", f"{each.options.get('password')!s:>9}", each._settings.address]
        assert "hunter2" not in "".join(shown)
    assert provider._settings.password == "hunter2"
    assert provider._settings.password.encode() == b"hunter2"


def test_json_text_of_options_is_understood() -> None:
    assert Settings.of(json.loads('{"url": "redis://h:1/2", "timeout_secs": 3}')).timeout_secs == 3


def test_the_client_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ProviderError, match=r"pip install statefx\[redis\]"):
        RedisStateProvider({})
