"""Doors to other libraries' data, one library a file; each is imported only where it is asked for."""
