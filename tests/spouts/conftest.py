"""What tests of spouts share."""

import pytest

from tests.sinks.database import PostgresDatabase, SqliteDatabase
from tests.sinks.postgres_server import PostgresServer
from tests.testing.places import place

__all__ = ["place"]


@pytest.fixture(scope="session")
def postgres():
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_database(postgres, tmp_path):
    return PostgresDatabase(postgres, tmp_path)


@pytest.fixture
def sqlite_database(tmp_path):
    return SqliteDatabase(tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request):
    return request.getfixturevalue(f"{request.param}_database")
