"""A measured system from inside: the request, trainers, and what they received.

May import: system.
"""
