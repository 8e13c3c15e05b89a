"""``python -m bench stacks``: how long trainers of each framework wait for data.

May import: system, throughput, training.
"""
