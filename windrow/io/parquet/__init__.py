"""Parquet files: footers checked and summarised, blocks read by the C decoder or Arrow, some pages of a row group.

May import: catalog, formats, storage.
In: the locators of a block, and the schema to deliver.
Out: what planning needs of a file; tables, or columns at their shuffled places. Files are verified.
"""
