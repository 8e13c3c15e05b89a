"""``python -m bench gpu``: how batches reach a GPU.

May import: system, throughput, training.
"""
