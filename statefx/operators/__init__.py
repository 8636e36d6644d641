"""What users subclass: bolts, spouts and sinks, their hooks, and what they are handed. `statefx` exports it."""
