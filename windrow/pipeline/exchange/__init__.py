"""Sources derived from other sources: rows in other blocks, and sorts, groups and shuffles of all rows.

May import: executors, plan, tasks.
In: a `Parent`, which is a source with its transforms, and an operation.
Out: a source, which windows, shards and states use like files. An exchange runs once, on the options' executor.
"""
