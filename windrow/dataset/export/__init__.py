"""The ``to_*`` methods: the rows of one pass as the structures of other libraries.

May import: epoch_iteration, logical_plan, write.
In: a plan, and the job that delivers its rows.
Out: tables, frames and datasets; in memory only if the rows fit.
"""
