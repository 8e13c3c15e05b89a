"""What the time of a run went to, as values: phases, statistics, and the bottleneck.

May import: no other room.
In: seconds, rows and bytes that tasks, coordinators and shards have measured.
Out: `Stats`, `RunStats` and `Span`, and the sentence that says what limits the run.
"""
