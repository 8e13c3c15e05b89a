"""Writing: the formats of output, the stores that files appear in, and the commit of all files of a write at once.

May import: storage.
In: tables of rows, and the directory that a user names.
Out: files, and the manifest that certifies that they are complete.
"""
