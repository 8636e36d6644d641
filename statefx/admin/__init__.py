"""What is done to a checkpoint beside running it: reading it, moving its state, ending what is open."""
