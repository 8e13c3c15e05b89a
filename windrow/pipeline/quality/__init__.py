"""How close the order of an epoch comes to a full shuffle, and what its steps cost, computed from the plan.

May import: plan.
In: a job and the row counts of its blocks; the lengths of rows.
Out: a `ShuffleReport`; the costs of steps with a `Balance` and without.
"""
