"""The methods of `Dataset` that act on all rows: combine, order, group.

May import: argument_checks, logical_plan, readable.
In: plans of datasets, and arguments, which are checked here.
Out: datasets of sources that are derived from others; they run when rows are needed.
"""
