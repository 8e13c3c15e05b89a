"""Sources that are not files under one root: tables in memory, and data of other libraries, one file per library.

May import: catalog, formats, storage.
In: tables, or datasets of a library, which is imported only when used.
Out: sources with a list of blocks; of data that can be read once, staged files, which are deleted with their last user.
"""
