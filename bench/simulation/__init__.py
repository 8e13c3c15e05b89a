"""The simulator of ``simulate`` and ``scale``: the real coordinator and fetch protocol on simulated machines.

May import: no other folder.
"""
