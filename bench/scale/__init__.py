"""``python -m bench scale``: the simulator with machines whose work has costs, and the measurement of these.

May import: simulation, system, throughput, training.
"""
