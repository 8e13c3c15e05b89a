"""Executors: one interface (``base``), and threads and Ray, which implement it.

May import: checkpoint, coordinator, delivery, plan, statistics, tasks, timeline.
In: a program and its shards.
Out: a `Session`, which connects shards to their coordinator. Only ``ray`` imports Ray.
"""
