"""``python -m bench executors``: several trainers on threads and on Ray, and the CPU time of each part of Ray.

May import: data, shapes, system.
"""
