"""``python -m bench peers``: windrow and all rivals in one run, compared with performance targets.

May import: data, peers, system, throughput, training.
"""
