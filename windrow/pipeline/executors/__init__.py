"""Executors: one interface (``base``) and its two implementations, threads and Ray."""
