"""Decoded blocks kept from epoch to epoch, in memory or on disk."""
