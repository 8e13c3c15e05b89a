"""The simulator of ``simulate`` and ``scale``: real coordinator core and fetch protocol, on simulated machines.

What differs between the two are the machines: those of ``simulate`` fail, those of ``scale`` have costs.
"""
