"""``python -m bench preparation``: functions that decode images and tokenize text, in windrow and beside bare loops.

May import: data, shapes, system.
"""
