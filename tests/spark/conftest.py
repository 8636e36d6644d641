from tests.testing.places import place, provider

__all__ = ["place", "provider"]
