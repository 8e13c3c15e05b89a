"""Replicas of a shard on one node: rows are placed once, in memory that all of them map."""
