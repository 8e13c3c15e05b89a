"""``python -m bench formats``: epochs of each format beside reads by the underlying library alone.

May import: system.
"""
