"""Pools of actors that run transforms."""
