"""``statefx ui``, as a shell runs it."""

import json
import re
import signal
import socket
import subprocess
import sys

import httpx2 as httpx
import pytest

from tests.ui.checkpoints import filled


def ran(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "statefx", "ui", *map(str, arguments)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.slow
def test_it_shows_a_checkpoint_until_it_is_interrupted(tmp_path):
    place = filled(tmp_path / "checkpoint", 2)
    with subprocess.Popen(
        [sys.executable, "-m", "statefx", "ui", str(place)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = process.stdout.readline()
        url = re.fullmatch(rf"{place}: (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", said)[1]
        found = httpx.get(f"{url}v1/topologies/bank", timeout=10).json()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert [each["txid"] for each in found["transactions"]] == [1, 2]
    assert (process.returncode, errors.strip()) == (130, "")


@pytest.mark.soak
@pytest.mark.slow
def test_with_json_it_says_where_the_page_is_in_a_line_of_json(tmp_path):
    place = filled(tmp_path / "checkpoint", 1)
    command = [sys.executable, "-m", "statefx", "ui", str(place), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = json.loads(process.stdout.readline())
        assert (said["checkpoint"], httpx.get(f"{said['url']}healthz", timeout=10).text) == (str(place), "unknown\n")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


@pytest.mark.soak
@pytest.mark.slow
def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    code, said = ran(tmp_path / "nothing")
    assert (code, "nothing" in said) == (1, True), said
    (tmp_path / "other").write_text("else")
    code, said = ran(tmp_path)
    assert (code, "is no checkpoint" in said) == (1, True), said


@pytest.mark.soak
@pytest.mark.slow
def test_a_port_that_is_taken_and_wrong_settings_are_refused(tmp_path):
    place = filled(tmp_path / "checkpoint", 1)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, said = ran(place, "--port", port)
    assert (code, f"--port: port {port} of 127.0.0.1 is taken" in said) == (2, True), said
    code, said = ran(place, "--config", "[]")
    assert (code, "'--config': a JSON object" in said) == (2, True), said
