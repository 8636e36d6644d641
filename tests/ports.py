"""Ports for servers of tests."""

import random
import socket


def free_port() -> int:
    """Return a port below those that systems give to whoever connects: it stays free while a server is down."""
    while True:
        port = random.randrange(15_000, 32_000)
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    """Tell whether nobody listens there."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
