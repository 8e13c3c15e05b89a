"""Deterministic Parquet data of any size, cached under ``.bench``.

May import: system.
"""
