"""Data in this process's memory as a source: cut into blocks, digested, and sent where it is read."""
