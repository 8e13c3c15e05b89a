"""Orders, and the moving of rows into them; no I/O, no clock, no executor.

    order      which row comes where: keys, permutations, windows, shards, runs
    kernels    rows of a block grouped by run, and placed: in C, and in NumPy where nothing was compiled

`order` imports `kernels`, and never the other way. The contract "io-cycles" in pyproject.toml enforces
this.
"""
