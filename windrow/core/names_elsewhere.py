"""Names of Ray Data, Hugging Face, tf.data, torch, pandas, Polars, Spark and others, and what to call here instead.

Each text names a call in backticks, which works as written on a ``ds``, ``pipe``, ``shard`` or ``windrow``, or says
why there is none. Tests run every call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

_SHUFFLED = "`ds.repeat(10).random_shuffle_each_window(seed=7)`"
_BATCHES = "`ds.iter_batches(batch_size=32)`"
_SHARD = "`ds.repeat(1).iterator()`"
_COUNT = "call `ds.count()`"
_SCHEMA = "call `ds.schema()`"
_ROWS = "call `ds.iter_rows()`"
_MAP = "call `ds.map_batches(f)`"
_TORCH = "call `ds.iter_torch_batches(batch_size=32)`"
_NO_JOIN = (
    "windrow does not join by keys: join with Polars, Spark or DuckDB, and read the result; `ds.zip(other)` puts rows "
    "side by side, and `ds.union(other)` appends them"
)
_NO_LABELS = (
    "rows have no labels: `ds.limit(5)` has the first rows, and `ds.filter(lambda row: row['x'] > 0)` chooses"
)
_NO_RESHAPE = (
    "windrow does not reshape or look at neighbouring rows: `ds.map_batches(f)` gets rows in batches, and "
    "`ds.to_pandas()` has all of them"
)
_NO_SQL = "windrow has no SQL: DuckDB and Polars query `ds.to_arrow()`, and `windrow.from_arrow(table)` reads a result"
_NO_CARD = (
    "windrow keeps no description of a dataset: `ds.schema()` has its columns, and `repr(ds)` its source"
)
_NO_SEARCH = "windrow has no index of rows: it reads all of them, in order or shuffled"
_IMMUTABLE = "a Dataset is immutable and holds no data: use the same one as often as you like"

DATASET = {
    "shuffle randomize_order": f"call {_SHUFFLED} for a new order every epoch, or `ds.random_shuffle(seed=7)` to "
    "shuffle once",
    "randomize_block_order": "call `ds.repeat(1).randomize_block_order_each_window(seed=7)`",
    "batch batched iter to_batches iter_slices iter_chunks padded_batch ragged_batch": f"call {_BATCHES}; "
    "`ds.iter_torch_batches(batch_size=32)` makes tensors",
    "unbatch unbatched explode unnest flatten": "call `ds.flat_map(lambda row: [row, row])` with a function "
    "that returns the rows of a row",
    "head": "call `ds.take(5)` for a list of rows, or `ds.limit(5)` for a dataset of them",
    "first": "call `ds.take(1)[0]`",
    "tail last": "call `ds.split_at_indices([ds.count() - 1])[1]`",
    "skip slice offset drop_first": "call `ds.split_at_indices([5])[1]`",
    "num_rows n_rows nrows row_count height shape size cardinality length empty is_empty isEmpty": _COUNT,
    "column_names names keys": "call `ds.columns()`",
    "num_columns width ncols": "call `len(ds.columns())`",
    "features dtypes dtype element_spec collect_schema printSchema output_types types arrow_schema": _SCHEMA,
    "info describe summary glimpse": "call `ds.schema()` and `ds.show(5)`, or `ds.aggregate(rows='count', mean=('x', "
    "'mean'))`",
    "nbytes estimated_size memory_usage dataset_size size_in_bytes": "call `ds.size_bytes()`",
    "npartitions num_partitions getNumPartitions n_chunks num_shards n_shards": "call `ds.num_blocks()`",
    "coalesce rechunk reshard rebalance repartition_by_range": "call `ds.repartition(4)`",
    "materialize cache persist snapshot checkpoint localCheckpoint": "call `ds.repeat(3).options(cache='memory')` to "
    "keep decoded blocks, or `ds.write_parquet('copy')` to keep the results of transforms",
    "prefetch prefetch_to_device": "windrow prefetches: `ds.iter_batches(batch_size=32, prefetch_batches=4)` sets how "
    "many batches, and `ds.repeat(1).options(prefetch_windows=2)` how many windows",
    "streaming_split shard split_dataset_by_node split_by_node split_by_worker": "call "
    "`ds.repeat(2).random_shuffle_each_window(seed=7).split(2, equal=True)`, or `ds.repeat(2).shard(rank=0, "
    "world_size=2)` on each rank",
    "iterator as_loader loader dataloader to_dataloader as_torch_dataset to_iterable_dataset as_iterator to_datapipe "
    "make_dataloader": f"call {_SHARD}; its `shard.as_loader(batch_size=32)` and "
    "`shard.as_torch_dataset(batch_size=32)` are what trainers take",
    "state_dict load_state_dict get_state stats timeline steps_per_epoch": f"a Dataset has no position: {_SHARD} has "
    "state_dict(), stats() and timeline()",
    "explain": "call `ds.repeat(1).explain(batch_size=32)`",
    "iter_epochs epochs": "a Dataset has no epochs: call `ds.repeat(10).iter_epochs()`",
    "set_epoch epoch with_epoch with_length": "windrow counts epochs: each pass of `ds.repeat(10).iter_epochs()` is "
    "the next one",
    "join merge join_asof join_where cogroup co_group left_join crossJoin": _NO_JOIN,
    "exceptAll subtract intersect intersectAll isin": _NO_JOIN,
    "concatenate concat append vstack extend unionAll unionByName add_item chain": "call `ds.union(other)`",
    "hstack": "call `ds.zip(other)`",
    "interleave sample_from_datasets interleave_datasets": "call `windrow.mix([ds, other], [0.7, 0.3], seed=7)`",
    "with_column with_columns withColumn withColumns assign insert insert_column replace_column "
    "with_columns_seq": "call `ds.add_column('z', lambda batch: batch['x'] + 1)`",
    "drop remove_columns drop_column del_column drop_in_place": "call `ds.drop_columns(['y'])`",
    "rename rename_column withColumnRenamed withColumnsRenamed": "call `ds.rename_columns({'x': 'z'})`",
    "select select_seq get_column get_columns project": "call `ds.select_columns(['x'])`, or, for rows, "
    "`ds.filter(lambda row: row['x'] > 0)` or `ds.limit(5)`",
    "cast cast_column astype": "call `ds.map_batches(lambda batch: {**batch, 'x': batch['x'].astype('float32')})`",
    "where query": "call `ds.filter(lambda row: row['x'] > 0)`",
    "drop_nans": "call `ds.filter(~pc.field('x').is_nan())` with pyarrow.compute as pc; this drops nulls too",
    "drop_nulls dropna": "call `ds.filter(pc.field('x').is_valid())` with pyarrow.compute as pc",
    "fill_nan": "call `ds.add_column('y', pc.if_else(pc.is_nan(pc.field('y')), 0, pc.field('y')))` with "
    "pyarrow.compute as pc",
    "fillna fill_null replace": "call `ds.add_column('y', pc.coalesce(pc.field('y'), 0))` with "
    "pyarrow.compute as pc",
    "drop_duplicates dropDuplicates drop_duplicate deduplicate dedup unique_rows": "call `ds.distinct(['x'])`, or "
    "`ds.distinct()` to compare all columns",
    "nunique n_unique approx_count_distinct": "call `len(ds.unique('y'))`",
    "value_counts": "call `ds.groupby('y').count()`",
    "is_duplicated duplicated is_unique": "call `ds.distinct(['x'])`, or `ds.groupby('x').count()`",
    "sort_values sort_by order_by orderBy sort_index": "call `ds.sort('x', descending=True)`",
    "nlargest nsmallest top_k bottom_k topk": "call `ds.sort('x', descending=True).limit(5)`",
    "group_by groupBy grouped": "call `ds.groupby('y').mean('x')`",
    "agg reduce fold product": "call `ds.aggregate(total=('x', 'sum'), rows='count')`",
    "var": "call `ds.std('x') ** 2`",
    "median quantile percentile approxQuantile mode corr cov": "windrow computes count, sum, mean, min, max and std: "
    "`ds.to_pandas()` or `ds.to_arrow()` has all rows for other statistics",
    "sample": "call `ds.random_sample(0.5, seed=7)`",
    "random_split randomSplit streaming_train_test_split": "call `ds.train_test_split(0.2, seed=7)`, or "
    "`ds.split_proportionately([0.7, 0.2])`",
    "collect compute collectAsList execute fetch": "call `ds.to_arrow()` or `ds.to_pandas()`",
    "take_all fetchall to_list to_dicts tolist toPandasList rows": "call `list(ds.iter_rows())`",
    "to_dict to_pydict": "call `ds.to_arrow().to_pydict()`",
    "toPandas df to_df": "call `ds.to_pandas()`",
    "numpy values data as_numpy": "call `ds.to_numpy()`",
    "as_numpy_iterator iterrows itertuples iter_rows_dict toLocalIterator foreach iter_columns": _ROWS,
    "apply transform pipe map_partitions mapPartitions mapInPandas mapInArrow map_with_index map_rows map_blocks "
    "transform_shard set_transform with_transform applymap": _MAP,
    "flatMap": "call `ds.flat_map(lambda row: [row, row])`",
    "set_format with_format reset_format formatted_as format torch to_tensor with_torch": f"{_TORCH} for tensors, or "
    "`ds.iter_batches(batch_size=32, batch_format='pandas')`",
    "collate collate_fn": "call `ds.iter_torch_batches(batch_size=32, collate_fn=f)`",
    "to pin_memory to_device": "call `ds.iter_torch_batches(batch_size=32, device='cpu')`",
    "to_tf_dataset iter_tf_batches as_tf_dataset": "call `ds.to_tf(feature_columns=['x'], label_column='y')`",
    "bucket_by_sequence_length group_by_window": "call `ds.iter_torch_batches(batch_size=32, group_by_length=8)` with "
    "one column of lists",
    "enumerate with_row_index with_row_count zipWithIndex add_index monotonically_increasing_id": "call "
    "`ds.options(row_id_column='row')`",
    "cycle": "call `ds.repeat()`",
    "sink_parquet to_parquet": "call `ds.write_parquet('out')`",
    "sink_csv to_csv": "call `ds.write_csv('out')`",
    "sink_ndjson to_json": "call `ds.write_json('out')`",
    "sink_ipc save_to_disk save to_feather to_disk": "call `ds.write_arrow('out')`",
    "write saveAsTable": "call `ds.write_parquet('out')`",
    "load_from_disk": "call `windrow.read_arrow('rows.arrow')`",
    "push_to_hub": "call `ds.write_parquet('out')`, and upload its files",
    "to_polars": "call `polars.from_arrow(ds.to_arrow())`",
    "rdd toDF": "call `ds.to_spark(spark)`",
    "to_arrow_refs to_numpy_refs to_pandas_refs get_internal_block_refs iter_internal_ref_bundles": "Ray Data has them "
    "of what `ds.to_ray()` returns",
    "input_files cache_files inputFiles": "`repr(ds)` names the source, and `ds.options(row_id_column='row')` with "
    "row_lineage() the file of each row",
    "copy clone deepcopy lazy eager unpersist cleanup_cache_files flatten_indices": _IMMUTABLE,
    "serialize serialize_lineage deserialize_lineage has_serializable_lineage": "call `pickle.dumps(ds)`",
    "iloc loc at iat index set_index reset_index reindex row": _NO_LABELS,
    "pivot melt unpivot transpose stack unstack rolling shift diff over pivot_table to_dummies": _NO_RESHAPE,
    "sql createOrReplaceTempView registerTempTable": _NO_SQL,
    "builder_name citation config_name description download_checksums download_size homepage license supervised_keys "
    "version name set_name get_dataset_id context get_context get_stats_summary": _NO_CARD,
    "add_faiss_index add_elasticsearch_index add_faiss_index_from_external_arrays load_faiss_index save_faiss_index "
    "load_elasticsearch_index list_indexes is_index_initialized get_index drop_index get_nearest_examples "
    "get_nearest_examples_batch search search_batch to_random_access_dataset": _NO_SEARCH,
    "class_encode_column align_labels_with_mapping": "call `ds.add_column('z', lambda batch: batch['y'] == 1)` with a "
    "function that maps labels to numbers",
    "mix": "call `windrow.mix([ds, other], [0.7, 0.3], seed=7)`",
    "decode": "call decode_images(), decode_audio() or decode_video() with the name of a column of bytes",
}
PIPELINE = {
    "shuffle random_shuffle local_shuffle shuffle_each_window": "call "
    "`ds.window().repeat(2).random_shuffle_each_window(seed=7)`",
    "sort sort_values order_by": "call `pipe.sort_each_window('x')`, or sort the dataset: `ds.sort('x').repeat(1)`",
    "repartition": "call `ds.window().repartition_each_window(4)`",
    "randomize_block_order": "call `ds.repeat(1).randomize_block_order_each_window(seed=7)`",
    "steps_per_epoch": "call `pipe.iterator().steps_per_epoch(batch_size=32)`, or "
    "`pipe.explain(2, equal=True, batch_size=32).steps` for the shards of a launcher with 2 ranks",
    "state_dict load_state_dict stats as_loader as_torch_dataset loader dataloader to_dataloader "
    "to_iterable_dataset": "call `pipe.iterator()`, whose Shard has state_dict(), stats(), as_loader() and "
    "as_torch_dataset()",
    "streaming_split split_by_node": "call `pipe.split(2, equal=True)`, or `pipe.shard(rank=0, world_size=2)` on each "
    "rank",
    "head take take_batch first show": "call `ds.take(5)` of the dataset, or "
    "`next(pipe.iter_batches(batch_size=5))`",
    "set_epoch epoch with_epoch": "windrow counts epochs: each pass of `pipe.iter_epochs()` is the next one",
    "batch batched iter": "call `pipe.iter_batches(batch_size=32)`",
    "materialize cache persist": "call `pipe.options(cache='memory')` to keep decoded blocks",
    "prefetch": "call `pipe.options(prefetch_windows=2)`",
    "get_num_rows num_rows shape cardinality": "call `pipe.count()`, the rows of an epoch",
    "limit skip": "limit the dataset: `ds.limit(5).repeat(2)`",
}
SHARD = {
    "batch batched iter next to_iterable_dataset": "call `shard.iter_batches(batch_size=32)`",
    "loader dataloader to_dataloader": "call `shard.as_loader(batch_size=32)`",
    "set_epoch": "windrow counts epochs: each pass of `shard.iter_epochs()` is the next one",
    "skip": "call `shard.skip_batches(1, batch_size=4)` or `shard.skip_epoch()`",
    "num_rows count shape length size": "call `shard.steps_per_epoch(32)`, or count() of the pipeline",
    "get_state save checkpoint": "call `shard.state_dict()`",
    "set_state load restore resume": "call `shard.load_state_dict(shard.state_dict())`",
    "rank world_size num_shards": "`repr(shard)` names the shard and their number",
    "materialize": "a shard is a stream that is read once an epoch: call `pipe.options(cache='memory')` to keep "
    "decoded blocks",
    "epoch": "each Epoch of `shard.iter_epochs()` has its number",
}
_OF_PIPELINES = (
    "map map_batches filter flat_map add_column drop_columns select_columns rename_columns random_sample tokenize "
    "decode_images decode_audio decode_video repeat window rewindow foreach_window random_shuffle_each_window "
    "randomize_block_order_each_window sort_each_window repartition_each_window pack union zip limit sort distinct "
    "random_shuffle repartition groupby aggregate options explain split shard iterator split_at_indices "
    "split_proportionately train_test_split take take_batch show schema columns unique sum mean min max std num_blocks "
    "size_bytes to_arrow to_pandas to_numpy to_dask to_ray to_huggingface to_spark write_parquet write_csv write_json "
    "write_arrow write_numpy write_tfrecords write_webdataset row_lineage epoch_lineage iter_datasets from_iterable "
    "save_manifest delete_staged"
)
_ON_PIPELINE = (
    "call it on the dataset or pipeline that this was made of, before split(), shard() or iterator()"
)
SHARD[_OF_PIPELINES] = _ON_PIPELINE
EPOCH = {
    _OF_PIPELINES: _ON_PIPELINE,
    "epoch index": "the attribute is number",
    "state_dict load_state_dict stats timeline as_loader as_torch_dataset to_tf to_xgboost to_lightgbm iter_epochs "
    "count steps_per_epoch skip_batches skip_epoch": "call it on the shard or pipeline whose iter_epochs() this is of",
}
BATCHES = {
    "state_dict load_state_dict stats timeline skip_batches": "call it on the shard: `pipe.iterator()`, whose "
    "iter_batches() returns such an iterator",
    "shuffle map filter prefetch repeat cache": "call it on the dataset or pipeline, before iter_batches()",
    "next": "call `next(pipe.iter_batches(batch_size=32))`",
    "take": "call `ds.take(5)`, or itertools.islice of this iterator",
}
GROUPED = {
    "agg": "call `ds.groupby('y').aggregate(total=('x', 'sum'), rows='count')`",
    "apply transform map apply_groups flat_map applyInPandas map_batches": "call `ds.groupby('y').map_groups(f)`",
    "size len length": "call `ds.groupby('y').count()`",
    "first head": "call `ds.distinct('y')`, which keeps the first row of each value",
    "nunique n_unique": "call `ds.distinct(['y', 'x']).groupby('y').count()`",
    "var": "call `ds.groupby('y').std('x')`, whose square it is",
    "median quantile mode all any last tail": "call `ds.groupby('y').map_groups(f)` with a function that computes it",
    "groups keys ngroups": "call `ds.unique('y')`",
    "take show to_pandas to_arrow iter_rows": "aggregate first, as in `ds.groupby('y').count().take()`",
}
FUNCTIONS = {
    "from_list from_dicts from_records from_iterable from_pylist": "call `windrow.from_items([{'x': 1}])`",
    "from_dict from_pydict from_tensor_slices from_numpy_refs": "call `windrow.from_numpy({'x': [1, 2]})`",
    "from_parquet scan_parquet read_parquet_bulk parquet": "call `windrow.read_parquet('rows.parquet')`",
    "from_csv scan_csv": "call `windrow.read_csv('rows.csv')`",
    "from_json scan_ndjson read_ndjson read_jsonl": "call `windrow.read_json('rows.json')`",
    "scan_ipc read_ipc read_feather load_from_disk from_disk": "call `windrow.read_arrow('rows.arrow')`",
    "read_table": "call `windrow.read_parquet('rows.parquet')`",
    "from_iterator": "call `windrow.from_generator(lambda: iter([{'x': 1}]))`",
    "load_dataset from_hf": "call `windrow.read_parquet('rows.parquet')` of files, those of the Hub with "
    "'hf://datasets/owner/name', or from_huggingface() of a datasets.Dataset",
    "from_tensors from_torch_dataset": "call from_torch() of tensors or a map-style Dataset",
    "concat concatenate concatenate_datasets chain": "call `ds.union(other)`",
    "interleave interleave_datasets sample_from_datasets RandomMix": "call `windrow.mix([ds, other], [0.7, 0.3], "
    "seed=7)`, or `windrow.mixture({'a': pipe, 'b': pipe}, {'a': 0.7, 'b': 0.3}, seed=7)`",
    "DataLoader StreamingDataLoader StatefulDataLoader WebLoader": "call `ds.repeat(1).iterator().as_loader("
    "batch_size=32)`",
    "StreamingDataset IterableDataset DataFrame ParquetDataset": "call `windrow.read_parquet('rows.parquet')`",
    "WebDataset": "call read_webdataset() of the paths of tar files",
    "init": "windrow needs no start: it uses Ray where ray.init() was called, else threads",
    "Path data": "all functions are in the module: `windrow.read_parquet('rows.parquet')`",
    "arange": "call `windrow.range(10)`",
    "read load open": "call `windrow.read_parquet('rows.parquet')`, or the read_ function of another format",
    "read_h5 read_hdf from_hdf5 open_hdf5": "call read_hdf5() of the paths of files",
    "open_zarr from_zarr": "call read_zarr() of the path of a store",
    "read_sqlite read_database read_database_uri read_sql_query read_sql_table from_sql": "call read_sql() with a "
    "query and a function that connects",
    "read_tfrecord from_tfrecords from_tfrecord TFRecordDataset": "call read_tfrecords() of the paths of files",
    "scan_avro from_avro": "call read_avro() of the paths of files",
    "scan_delta read_deltalake": "call read_delta() of the path of a table",
    "scan_iceberg": "call read_iceberg() of a table",
    "read_excel read_html read_clipboard": "call from_pandas() of what pandas reads",
}
_TABLES = {
    "Dataset": DATASET,
    "DatasetPipeline": PIPELINE,
    "Shard": SHARD,
    "Epoch": EPOCH,
    "EpochBatches": BATCHES,
    "Passes": BATCHES,
    "GroupedDataset": GROUPED,
    "windrow": FUNCTIONS,
}
# where the names of a dataset are not those of the class itself: how to get to the dataset
_ABOVE = {
    "DatasetPipeline": "on the dataset, before window() or repeat(): ",
    "Shard": "on the dataset, before it is split: ",
    "Epoch": "on the dataset, before it is split: ",
}
_FAMILIES = ("read_", "from_", "write_", "to_", "iter_", "decode_")


def find_advice(kinds: Iterable[str], name: str, present: Collection[str]) -> str | None:
    """Return what to call instead of a name; None: it is unknown.

    Parameters
    ----------
    kinds
        Names of the class and its base classes, or ``"windrow"`` for the module.
    name
        The name that was asked for.
    present
        The names that exist there.

    Examples
    --------
    >>> find_advice(["Dataset"], "value_counts", ())
    "call ds.groupby('y').count()"
    >>> find_advice(["Dataset"], "write_excel", ["write_csv", "write_json"])
    'there are write_csv() and write_json()'
    """
    for kind in kinds:
        text = _find(_TABLES.get(kind, {}), name)
        if text is None and kind in _ABOVE:
            text = _find(DATASET, name)
            text = None if text is None else _ABOVE[kind] + text
        if text is not None:
            return text.replace("`", "")
    family = next((family for family in _FAMILIES if name.startswith(family)), None)
    others = [] if family is None else [f"{each}()" for each in present if each.startswith(family)]
    return f"there are {', '.join(others[:-1])} and {others[-1]}" if len(others) > 1 else None


def _find(table: Mapping[str, str], name: str) -> str | None:
    return next((text for names, text in table.items() if name in names.split()), None)
