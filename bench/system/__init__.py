"""The machine, its processes, Ray and the terminal.

May import: no other folder.
"""
