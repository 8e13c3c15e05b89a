"""The methods of `Dataset` and `DatasetPipeline` that add transforms of columns, batches and rows.

May import: argument_checks, logical_plan.
In: users' functions and expressions, which are checked here.
Out: a plan with one transform more. Nothing is called.
"""
