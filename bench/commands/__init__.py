"""Subcommands of one module each.

May import: data, remote, shapes, system, throughput, training.
"""
