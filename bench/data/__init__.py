"""Deterministic Parquet data of any size, cached under ``.bench``. Imports nothing else of the benchmark."""
