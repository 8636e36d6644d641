"""What tests of spouts share."""

from tests.testing.places import place

__all__ = ["place"]
