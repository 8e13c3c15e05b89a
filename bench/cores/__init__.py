"""``python -m bench cores``: speed and the GIL's share by the number of cores, beside a scan.

May import: data, shapes, system.
"""
