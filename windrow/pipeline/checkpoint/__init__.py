"""States: where a stream continues, checked to be of the same stream; and the lineage of rows.

May import: plan, tasks.
In: jobs, programs and states. A state is JSON values, and loading one runs no code.
Out: states, the `Cursor` at which a state continues, and where rows are stored.
"""
