"""State kept as immutable files: one of changes for each transaction, and full images."""
