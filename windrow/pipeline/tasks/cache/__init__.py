"""Caches of decoded blocks, in memory or on disk, so that later epochs skip reading and decoding."""
