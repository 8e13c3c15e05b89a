"""Epochs of each format compared with reads by the underlying library alone, on the same cores."""
