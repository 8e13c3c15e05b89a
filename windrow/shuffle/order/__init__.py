"""Which row comes where: keys, permutations, windows, shards and runs, as arithmetic on integers and arrays."""
