"""The Ray executor: the only place that imports ray."""
