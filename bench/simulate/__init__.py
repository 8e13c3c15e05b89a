"""``python -m bench simulate``: complete runs, each from one seed, on machines that fail.

May import: simulation, system.
"""
