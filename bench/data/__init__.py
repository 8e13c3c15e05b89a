"""Deterministic Parquet data of any size, kept under ``.bench/data``."""

from __future__ import annotations

from bench.data.make import KINDS, make_data

__all__ = ["KINDS", "make_data"]
