"""What a run will do, computed before it starts: pure, except that ``head`` reads the first rows.

May import: tasks.
In: a `Job`, and the `Resources` of an executor.
Out: the `Program` with its windows, tasks and cursors, the memory budget, and what ``explain()`` prints.
"""
