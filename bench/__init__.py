"""Benchmarks of windrow and of comparable libraries. Not part of the wheel.

Run ``python -m bench --help`` from the root of the repository.
"""
