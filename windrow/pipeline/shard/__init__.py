"""What a trainer holds: the shard, its epochs, and the threads that prepare its batches.

May import: checkpoint, coordinator, delivery, executors, loaders, plan, statistics, tasks, timeline.
In: a program and the session of an executor, which delivers map outputs.
Out: batches in order, states, statistics and timelines.
"""
