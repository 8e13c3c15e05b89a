"""Measures how batches reach a GPU."""
