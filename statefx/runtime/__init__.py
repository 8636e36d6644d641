"""The tasks' side: bolts, their rows and their state, in one attempt. Knows no Spark."""
