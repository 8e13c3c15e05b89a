"""Whole runs against a simulated cluster that fails, from one seed each."""
