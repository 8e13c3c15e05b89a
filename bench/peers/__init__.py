"""The measured systems: one small adapter each, run in a process of its own.

May import: data, system, training.
"""
