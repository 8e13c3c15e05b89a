"""Batches as torch tensors: the only place that imports torch, and only when it is asked to."""
