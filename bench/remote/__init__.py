"""``python -m bench store``: a local S3 server behind a proxy that adds latency and limits bandwidth.

May import: system, throughput.
"""
