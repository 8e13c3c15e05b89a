"""Which tasks run when, and what each shard gets of them; no I/O and no threads.

May import: checkpoint, plan, statistics, tasks.
In: a program and its budget; requests of shards and reports of tasks, as the executor passes them on.
Out: tasks for a `TaskRunner`, replies with handles of map outputs, statistics. Nothing here decides a row's place.
"""
