"""What is done to a checkpoint beside running it: reading its state, moving its state to another provider."""
