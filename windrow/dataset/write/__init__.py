"""The ``write_*`` methods: the rows of a plan as files, complete or not at all.

May import: epoch_iteration, logical_plan.
In: a plan and a `WriteRequest`.
Out: files and a `WriteResult`; after a failure, none of them, unless with ``mode="resume"``.
"""
