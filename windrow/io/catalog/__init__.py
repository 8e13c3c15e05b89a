"""What is known of data before it is read: files, row groups, schemas, sizes, blocks; filters and casts.

May import: storage.
In: paths and a `FileFormat`, which inspects one file.
Out: a `FileSource` or `ListedSource`, whose blocks follow from the manifest alone.
"""
