"""Subcommands of one module each.

May import: data, peers, shapes, system, throughput, training.
"""
