"""Batches in the formats that users ask for: NumPy, pandas, Arrow, tensors, JAX and gradient boosting.

May import: no other room.
In: record batches, and the arguments of an ``iter_*`` call, which are checked here.
Out: arrays, tables and tensors, as views where memory allows. Nothing is read or shuffled.
"""
