"""Ports for servers of tests."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a port below those that systems give to whoever connects: it stays free while a server is down."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
