"""Tables with a log: Delta Lake, Iceberg and Lance.

May import: catalog, parquet, storage.
In: the location of a table and its version; the table's library reads the log, and nothing else.
Out: a source of the files of one snapshot. Only this room imports these libraries.
"""
