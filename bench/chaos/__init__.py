"""``python -m bench chaos``: processes of a real Ray cluster of several raylets are killed while trainers read.

May import: system.
"""
