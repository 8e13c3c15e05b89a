"""From paths and tables to blocks, and from rows to files: six floors, each of which imports only what stands below it.

    spark                 DataFrames of Spark, staged as Parquet files
    adapters | tables     data of other libraries and in memory; tables with a log
    parquet               Parquet files, and their decoder
    formats | sinks       other files, and what all readers share; how rows become files
    catalog               what is known of data before it is read
    storage               filesystems, object storage, versions of files

The contracts "io-floors" and "io-cycles" in pyproject.toml enforce this. Rooms of one floor do not know each
other. The first file of each room says what it may import, what comes in and what goes out.
"""
