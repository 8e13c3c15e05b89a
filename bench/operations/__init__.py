"""``python -m bench operations``: transforms and global operations beside plain loops, Polars and Ray Data.

May import: data, system.
"""
