"""The Ray executor; the only package that imports ray."""
