"""Measures systems on the same files, one after another. Imports peers and what is below them."""
