"""The contract of state providers."""
