"""What tests of spouts share."""

from tests.spouts.queues import make, queue
from tests.testing.places import place

__all__ = ["make", "place", "queue"]
