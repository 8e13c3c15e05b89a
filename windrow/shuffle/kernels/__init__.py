"""Moving rows: grouped by run on the map side, placed on the reduce side; in C, and the same in NumPy."""
