"""The throughput benchmark: data makers, rivals, measurements. Not part of the wheel.

Run ``python -m bench --help`` from the repository's root.
"""
