"""Measures systems on the same files, one after another, and reports the results.

May import: data, peers, system, training.
"""
