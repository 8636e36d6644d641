"""State kept as immutable files: one of changes for each transaction, and full images.

A chain of five files, with what opening each version reads, is worked out in docs/on-disk.md; a test runs it.
"""
