"""DataFrames of Spark: staged as Parquet files to be read, and written as files that Spark reads.

May import: adapters, catalog, parquet, sinks, storage.
In: a Spark session and a DataFrame, or rows to write.
Out: a `FileSource` of staged files, which are reused for the same rows; a sink. Only this room imports Spark.
"""
