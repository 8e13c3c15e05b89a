"""Sources of data in this process's memory: cut into blocks, digested, and serialized to reading processes."""
