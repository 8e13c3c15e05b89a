"""``python -m bench scale``: the simulator with machines whose work has costs.

May import: simulation, system.
"""
