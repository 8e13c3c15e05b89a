"""What only some operating systems offer, each with a plain fall-back; no other module calls these functions of theirs.

Linux has all of it. macOS lacks control groups, ``/proc``, memory files, CPU affinity and statistics of one thread.
Windows also lacks POSIX locks, reads at an offset and descriptors that other processes inherit, and a file that is
open can be neither renamed nor removed there. ``tests/test_systems.py`` finds uses in other modules, and runs windrow
with these functions taken away.
"""
