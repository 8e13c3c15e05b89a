"""``python -m bench shapes``: epochs of Parquet files as people have them beside a raw scan.

May import: data, system.
"""
