"""What a bolt sees of its state, and its transaction."""
