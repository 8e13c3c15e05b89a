"""Runs of windrow as if on macOS or Windows: what these systems lack is taken away from it."""
