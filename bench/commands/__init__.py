"""Subcommands of one module each.

May import: data, shapes, system, throughput, training.
"""
