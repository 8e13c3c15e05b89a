"""How close the order of an epoch comes to a full shuffle, computed from the plan.

May import: plan.
In: a job and the row counts of its blocks.
Out: a `ShuffleReport`.
"""
