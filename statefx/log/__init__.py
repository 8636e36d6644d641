"""The transaction log and the checkpoint around it, at rest: for drivers and for tools."""
