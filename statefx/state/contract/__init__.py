"""What a state provider implements, and what it is told."""
