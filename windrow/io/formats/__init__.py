"""Files of other formats, and what the readers of all formats share: parts of blocks, rows from files of any kind.

May import: catalog, storage.
In: the locators of a block, the schema to deliver, and the options that users pass for a format.
Out: what planning needs of a file, by `FileFormat`; tables.
"""
