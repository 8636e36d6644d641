"""Control connections: who is let in, what is said, who is lost; over real sockets."""

import contextlib
import os
import socket
import threading

import pytest

from statefx.errors import ConfigError
from statefx.protocol import messages
from statefx.protocol.messages import ChainId, FrameError, FrameKind, Frames, frame
from statefx.spark import control
from statefx.spark.control import ChainControl, ControlLostError, ControlServer, DriverUnreachableError
from tests.ports import free_port
from tests.spark.running import wait_for

RUN, SECRET = b"r" * 32, b"s" * 32
SLOTS = [ChainId(0, 0), ChainId(1, 0)]
BOUND_SECS = 30


class Driver:
    def __init__(self, host="127.0.0.1", port=0):
        self.heard, self.lost, self.now = [], [], 0.0
        self.server = ControlServer(
            host, port, RUN, SECRET, SLOTS,
            lambda *said: self.heard.append(said), lambda *gone: self.lost.append(gone), lambda: self.now,
        )  # fmt: skip

    def chain(self, chain=SLOTS[0], run=RUN, secret=SECRET):
        return ChainControl(self.server.address, run, secret, chain, timeout_secs=BOUND_SECS)

    def has_heard(self, kind):
        return wait_for(lambda: [each for each in self.heard if each[1] is kind], kind.name)


@pytest.fixture
def driver():
    made = Driver()
    yield made
    made.server.close()


@pytest.fixture
def stranger(driver):
    with socket.create_connection(driver.server.address, timeout=BOUND_SECS) as connected:
        yield connected


def closed(connection):
    """Read to the end; a connection that is reset has ended too."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(4096):
            pass
    return True


def test_frames_are_said_in_order_both_ways(driver):
    chain = driver.chain()
    assert driver.has_heard(FrameKind.HELLO)[0][0] == SLOTS[0]
    bodies = [os.urandom(n) for n in (0, 1, 100_000, 5)]
    for body in bodies:
        driver.server.send(SLOTS[0], FrameKind.RUN, body)
        chain.send(FrameKind.ACK, body)
    assert [chain.next() for _ in bodies] == [(FrameKind.RUN, body) for body in bodies]
    wait_for(lambda: len(driver.heard) == 1 + len(bodies), "acks")
    assert driver.heard[1:] == [(SLOTS[0], FrameKind.ACK, body) for body in bodies]
    chain.close()


def test_a_sign_of_life_that_comes_with_the_greeting_is_no_order(driver, monkeypatch):
    sent = driver.server._enqueue
    alive = frame(FrameKind.ALIVE)
    monkeypatch.setattr(
        driver.server, "_enqueue", lambda peer, data: sent(peer, data if messages.MAGIC in data else data + alive)
    )
    chain = driver.chain()
    driver.server.send(SLOTS[0], FrameKind.END)
    assert chain.next()[0] is FrameKind.END
    chain.close()


def test_an_attempt_is_abandoned_while_the_chain_is_busy(driver):
    chain, told = driver.chain(), threading.Event()
    chain.abandoned = lambda attempt: told.set() if attempt == (7, 2) else None
    driver.has_heard(FrameKind.HELLO)
    driver.server.send(SLOTS[0], FrameKind.ABANDON, messages.pack_attempt(7, 2))
    assert told.wait(BOUND_SECS)  # nobody has called `next`
    chain.close()


def test_each_sign_of_life_is_told_while_the_chain_is_busy(driver):
    chain, told = driver.chain(), threading.Event()
    chain.alive = told.set
    driver.has_heard(FrameKind.HELLO)
    driver.now += control.ALIVE_SECS
    driver.server._wake()
    assert told.wait(BOUND_SECS)  # nobody has called `next`
    chain.close()


@pytest.mark.parametrize(
    ("chain", "run", "secret"),
    [(SLOTS[0], b"x" * 32, SECRET), (SLOTS[0], RUN, b"x" * 32), (ChainId(5, 5), RUN, SECRET)],
    ids=["another run", "without its secret", "a chain that it has not"],
)
def test_who_is_of_no_chain_is_turned_away(driver, chain, run, secret, caplog):
    for _ in range(2):
        with pytest.raises(ControlLostError, match="did not answer"):
            driver.chain(chain, run, secret)
    wait_for(lambda: driver.server.refused == 2, "two were refused")
    assert not driver.heard
    assert len([each for each in caplog.messages if "turned away" in each]) == 1


def test_a_stranger_who_says_much_or_nothing_is_turned_away(driver, stranger):
    stranger.sendall(b"\xff" * 4096)
    assert closed(stranger)
    with socket.create_connection(driver.server.address, timeout=BOUND_SECS) as silent:
        assert silent.recv(4096).startswith(messages.MAGIC)
        driver.now += control.HELLO_SECS + control.ALIVE_SECS
        driver.server._wake()
        assert closed(silent)
    wait_for(lambda: driver.server.refused == 2, "both were refused")
    driver.chain().close()  # who belongs to the run is let in all the same


def test_more_strangers_than_it_takes_do_not_keep_a_chain_out_for_ever(driver, monkeypatch):
    monkeypatch.setattr(control, "STRANGERS_MAX", 3)
    with contextlib.ExitStack() as stack:
        there = [
            stack.enter_context(socket.create_connection(driver.server.address, timeout=BOUND_SECS)) for _ in range(3)
        ]
        assert all(each.recv(4096) for each in there)
        with pytest.raises(ControlLostError):
            driver.chain()
        driver.now += control.HELLO_SECS + control.ALIVE_SECS
        driver.server._wake()
        assert all(map(closed, there))
        driver.chain().close()


def test_a_second_connection_for_a_chain_ends_the_run(driver):
    first = driver.chain()
    driver.has_heard(FrameKind.HELLO)
    with pytest.raises(ControlLostError):
        driver.chain().next()
    wait_for(lambda: driver.lost, "the run ends")
    assert "second connection" in driver.lost[0][1]
    first.close()


def test_nobody_takes_the_place_of_a_chain_that_is_gone(driver):
    driver.chain().close()
    wait_for(lambda: driver.lost, "it is lost")
    with pytest.raises(ControlLostError):
        driver.chain().next()
    assert [chain for chain, kind, _ in driver.heard if kind is FrameKind.HELLO] == [SLOTS[0]]


def test_a_chain_that_is_gone_is_lost(driver):
    driver.chain().close()
    wait_for(lambda: driver.lost, "it is lost")
    assert driver.lost == [(SLOTS[0], "its connection was closed")]


@pytest.mark.slow
def test_a_chain_that_gives_no_sign_of_life_is_lost(driver):
    with socket.create_connection(driver.server.address, timeout=BOUND_SECS) as frozen:
        nonce = frozen.recv(messages.CHALLENGE_BYTES)[len(messages.MAGIC) :]
        frozen.sendall(frame(FrameKind.HELLO, messages.hello(SECRET, nonce, RUN, SLOTS[0])))
        alive = driver.chain(SLOTS[1])
        wait_for(lambda: len(driver.heard) == 2, "both are there")
        for _ in range(int(control.SILENCE_SECS / control.ALIVE_SECS) + 2):
            before = driver.server._known[SLOTS[1]].last_received_at
            driver.now += control.ALIVE_SECS
            driver.server._wake()
            wait_for(lambda before=before: driver.server._known[SLOTS[1]].last_received_at > before, "a sign of life")
        wait_for(lambda: driver.lost, "it is lost")
        assert [chain for chain, _ in driver.lost] == [SLOTS[0]]
        assert driver.lost[0][1].startswith("no sign of life for 2")
        alive.check()
        alive.close()


def test_a_chain_whose_driver_is_gone_ends(driver):
    chain = driver.chain()
    driver.server.close()
    with pytest.raises(ControlLostError):
        chain.next()
    with pytest.raises(ControlLostError):
        chain.check()
    chain.close()


def test_a_driver_without_the_secret_is_none(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(messages, "welcome", lambda *_: b"x" * 32)
    monkeypatch.setattr(messages, "is_welcome", lambda *_: False)
    with pytest.raises(ControlLostError, match="is not the driver of this run"):
        driver.chain()
    driver.server.close()


def test_a_driver_that_is_not_there_is_named():
    port = free_port()
    with pytest.raises(DriverUnreachableError, match=rf"127\.0\.0\.1:{port} can't be reached.*topology\.control\.port"):
        ChainControl(("127.0.0.1", port), RUN, SECRET, SLOTS[0])


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*choose another topology\.control\.port"):
            Driver(port=port)


def test_ipv6():
    try:
        driver = Driver("::1")
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    chain = driver.chain()
    driver.has_heard(FrameKind.HELLO)
    chain.close()
    driver.server.close()


def test_a_frame_that_is_none_is_refused():
    with pytest.raises(FrameError, match="at most 10"):
        list(Frames(10).feed(frame(FrameKind.RUN, b"x" * 11)))
    with pytest.raises(FrameError, match="unknown kind 77"):
        list(Frames().feed(b"\0\0\0\0\x4d"))
    with pytest.raises(FrameError, match="bytes: at most"):
        frame(FrameKind.RUN, bytes(messages.FRAME_BYTES_MAX + 1))


def test_frames_come_in_pieces():
    frames, found = Frames(), []
    for byte in frame(FrameKind.RUN, b"abc") + frame(FrameKind.END):
        found += frames.feed(bytes([byte]))
    assert found == [(FrameKind.RUN, b"abc"), (FrameKind.END, b"")]
