"""Generators of deterministic Parquet data of any size, cached under ``.bench/data``."""

from __future__ import annotations

from bench.data.make import KINDS, make_data

__all__ = ["KINDS", "make_data"]
