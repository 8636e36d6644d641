"""Ready-made sinks, and the base of a user's own."""
