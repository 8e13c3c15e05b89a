"""``python -m bench machine``: what this machine gives, in minutes: ``cores`` and ``gpu``, one file and one picture.

May import: cores, gpu, system.
"""
