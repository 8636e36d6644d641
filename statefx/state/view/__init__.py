"""A bolt's view of its state, and its transaction."""
