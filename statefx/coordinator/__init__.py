"""The driver's side: the log, the transactions, recovery. Knows no Spark."""
