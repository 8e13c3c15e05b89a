"""Deterministic Parquet data of any size, cached under ``.bench``.

May import: no other folder.
"""
