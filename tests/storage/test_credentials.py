"""Credentials as users of S3 have them: variables, profiles, roles; asked for before they expire; shown nowhere."""

import contextlib
import json
import re
import sys
import threading
import traceback
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from statefx.errors import CheckpointError, StatefxError, StorageError
from statefx.storage import objects as profiles
from statefx.storage import storage_at
from tests.storage.s3_server import SECRET, made_bucket
from tests.storage.test_checkpoints import Remote

pytestmark = pytest.mark.slow

WAIT_SECS = 20


@pytest.fixture
def url(monkeypatch, tmp_path, between):
    """A prefix, with an endpoint and nothing else in the environment."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "DEFAULT_PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", between.address)
    bucket = made_bucket(between.address)
    between.requests.clear()
    return f"s3://{bucket}/word-count"


def signed_by(between):
    """The keys and regions that requests were signed with, each once, in order."""
    signed = [each.headers.get("authorization", "") for each in between.requests]
    found = [re.search(r"Credential=([^/]+)/\d+/([^/]+)/", each) for each in signed]
    return list(dict.fromkeys(each.groups() for each in found if each))


@contextlib.contextmanager
def answering(answer):
    """Yield the address of a server; `answer` gets the path and returns status, type and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, kind, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815 - http.server's names

        def log_message(self, *given):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


class Roles:
    """What a container or a machine gives out: other keys each time, which expire."""

    def __init__(self, lasting_secs):
        self.given = 0
        self.lasting_secs = lasting_secs

    def answer(self, path):
        if path == "/latest/api/token":
            return 200, "text/plain", b"a-token-of-the-machine"
        if path.endswith("/security-credentials/"):
            return 200, "text/plain", b"the-role"
        self.given += 1
        ends = datetime.now(UTC) + timedelta(seconds=self.lasting_secs)
        keys = {"AccessKeyId": f"role-{self.given}", "SecretAccessKey": SECRET, "Token": "a-session-token"}
        more = {"Expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}", "Code": "Success", "LastUpdated": "2026-01-01T00:00:00Z"}
        return 200, "application/json", json.dumps({**keys, **more}).encode()


@pytest.fixture(params=["container", "machine"])
def role(request, monkeypatch, tmp_path):
    """Makes the environment of a container or of a machine that has a role."""

    @contextlib.contextmanager
    def made(lasting_secs):
        roles = Roles(lasting_secs)
        with answering(roles.answer) as address:
            if request.param == "container":
                (tmp_path / "token").write_text("a-token-of-the-pod")
                monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{address}/credentials")
                monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
            else:
                monkeypatch.setenv("AWS_METADATA_ENDPOINT", address)
            yield roles

    return made


def test_those_of_a_role_are_asked_for_again_when_they_expire(role, url, between):
    with role(lasting_secs=1) as roles:
        storage = storage_at(url)
        storage.put("a", b"1")
        end = datetime.now() + timedelta(seconds=WAIT_SECS)
        while roles.given < 3 and datetime.now() < end:
            assert storage.read("a") == b"1"
    assert roles.given >= 3
    assert [key for key, _ in signed_by(between)][:2] == ["role-1", "role-2"]


def test_those_of_a_role_are_used_for_as_long_as_they_last(role, url, between):
    with role(lasting_secs=3600) as roles:
        storage = storage_at(url)
        storage.put("a", b"1")
        for _ in range(20):
            storage.read("a")
    assert roles.given == 1
    assert [key for key, _ in signed_by(between)] == ["role-1"]


@pytest.fixture
def files(tmp_path):
    """Writes ``~/.aws/credentials`` and ``~/.aws/config``."""
    folder = tmp_path / ".aws"
    folder.mkdir()

    def written(**keys):
        form = "[{}]\naws_access_key_id = {}\naws_secret_access_key = {}\n"
        (folder / "credentials").write_text("".join(form.format(*each, SECRET) for each in keys.items()))
        (folder / "config").write_text("[profile other]\nregion = eu-west-3\n")

    return written


def test_a_profile(files, url, between, monkeypatch):
    files(default="of-default", other="of-other")
    storage_at(url).put("a", b"1")
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert storage_at(url).read("a") == b"1"
    assert signed_by(between) == [("of-default", "us-east-1"), ("of-other", "eu-west-3")]


def test_variables_come_before_a_profile(files, url, between, monkeypatch):
    files(default="of-default")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-a-variable")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    storage_at(url).put("a", b"1")
    assert [key for key, _ in signed_by(between)] == ["of-a-variable"]


def test_the_files_are_read_again(files, url, between, monkeypatch):
    monkeypatch.setattr(profiles, "KEPT", timedelta(seconds=1))
    files(default="of-before")
    storage = storage_at(url)
    storage.put("a", b"1")
    files(default="of-now")
    end = datetime.now() + timedelta(seconds=WAIT_SECS)
    while len(signed_by(between)) < 2 and datetime.now() < end:
        storage.read("a")
    assert [key for key, _ in signed_by(between)] == ["of-before", "of-now"]


def test_a_profile_that_is_not_there_is_named(files, url, monkeypatch, tmp_path):
    files(default="of-default")
    monkeypatch.setenv("AWS_PROFILE", "none")
    with Remote(tmp_path, url) as driver, pytest.raises(StorageError, match=r"\(none\).*AWS_PROFILE names a profile"):
        driver.start()


def test_a_profile_takes_boto3(files, url, monkeypatch, tmp_path):
    files(default="of-default")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with Remote(tmp_path, url) as driver, pytest.raises(StorageError, match=r"pip install 'statefx\[aws\]'"):
        driver.start()


REFUSAL = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message>\
<Token-0>the-session-token</Token-0><AWSAccessKeyId>the-key</AWSAccessKeyId></Error>"""
"""As S3 answers when a session is over: it repeats the token."""


def test_what_a_store_repeats_of_the_credentials_is_not_shown(monkeypatch, tmp_path, caplog):
    with answering(lambda path: (403, "application/xml", REFUSAL)) as address, caplog.at_level("DEBUG"):
        keys = {"ACCESS_KEY_ID": "the-key", "SECRET_ACCESS_KEY": SECRET, "SESSION_TOKEN": "the-session-token"}
        for name, value in keys.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        storage = storage_at("s3://bucket/word-count")
        with Remote(tmp_path, storage.url) as driver, pytest.raises(CheckpointError, match="has expired") as refused:
            driver.start()
        shown = [caplog.text, *traceback.format_exception(refused.value)]
        for call in (
            lambda: storage.create("a", b""),
            lambda: storage.put("a", b""),
            lambda: storage.read("a"),
            lambda: storage.read("a", 1, 2),
            lambda: storage.reader("a"),
            lambda: list(storage.list()),
            lambda: storage.delete(["a"]),
        ):
            with pytest.raises((OSError, StatefxError), match="ExpiredToken: The provided token has expired") as failed:
                call()
            shown += traceback.format_exception(failed.value)
    assert not [line for line in shown if re.search(f"the-session-token|the-key|{SECRET}", line)]
