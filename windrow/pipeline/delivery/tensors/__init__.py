"""Batches as torch tensors: the only package that imports torch, and only on first use."""
