"""How a topology runs: who shares a Spark task, how rows find their tasks, what tasks are sent. Knows no Spark."""
