"""An S3 server for all tests of the folder, and the way to it."""

import pytest

from tests.storage.network import network
from tests.storage.s3_server import as_users_have_it, s3_server


@pytest.fixture(scope="session")
def server():
    with s3_server() as address:
        yield address


@pytest.fixture
def between(server):
    """What goes wrong on the way to the server, and sees what goes over it."""
    with network(server) as made:
        yield made


@pytest.fixture
def bucket(server):
    """Makes a bucket, and returns the URL of a prefix in it."""
    with as_users_have_it(server) as made:
        yield made
