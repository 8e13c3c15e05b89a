"""The work on blocks, the same on every executor: read, transform, group by run.

May import: delivery, statistics.
In: a `Task`, its `TaskContext`, and users' functions.
Out: map outputs, and a report of rows, bytes and time. Where and when tasks run is decided above.
"""
