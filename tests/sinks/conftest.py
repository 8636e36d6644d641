"""What tests of sinks share."""

import pytest

from tests.sinks.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres():
    with PostgresServer() as server:
        yield server
