"""Shuffled epochs of Parquet files as people have them, compared with a raw scan by CPU time and by the clock."""
