"""What tests of clients share."""

from tests.spouts.queues import make, queue

__all__ = ["make", "queue"]
