"""Where rows come from: ``read_*``, ``from_*``, ``range``, ``mix`` and ``mixture``.

May import: argument_checks, dataset, logical_plan.
In: paths, tables, frames, functions, datasets of other libraries.
Out: a `Dataset`, of `mixture` a pipeline. What is read of its data now is the least that tells columns and types.
"""
