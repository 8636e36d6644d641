"""How keys and values become bytes."""
