"""The transaction protocol as pure values, tables and decisions: no I/O, clock or threads."""
