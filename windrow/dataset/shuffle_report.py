"""shuffle_report: how close a pipeline's order comes to a full shuffle, from its plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer, check_count
from windrow.dataset.dataset import DatasetPipeline
from windrow.dataset.readable import count_blocks_of
from windrow.pipeline.plan.job import Job
from windrow.pipeline.quality.measure_job import measure_job
from windrow.pipeline.quality.shuffle_report import ShuffleReport


def shuffle_report(
    pipe: DatasetPipeline, *, batch_size: int = 256, epoch: int = 0, count: bool = False
) -> ShuffleReport:
    """Measure how close the order of a pipeline comes to a full shuffle, from the plan, without reading data.

    Five measures are compared with those of a full shuffle, in which every order of all rows is equally likely:

    - *displacement*: the distance of rows from their stored place. It is a third of the dataset on average, also where
      whole blocks move.
    - *row groups a batch*: how many row groups the rows of a batch come from. For a full shuffle that follows from the
      hypergeometric law. Rows of a row group are often alike, so this tells how varied batches are.
    - *pairs that meet again*: how often two rows of a batch share a batch in the next epoch too. Where that exceeds
      chance, successive epochs repeat part of their batches.
    - *entropy of neighbours*: that of the distances between neighbouring rows, and between their row groups, as the
      simulator of MosaicML Streaming computes it (``simulation/core/shuffle_quality.py`` of
      https://github.com/mosaicml/streaming).
    - *distance of neighbours*: the mean distance in storage of rows that are delivered next to each other, by which
      windrow's README compares loaders.

    Epochs of up to half a million rows are measured whole, larger ones by batches that are evenly spread, always the
    same ones. So the report takes seconds and some 100 MB, also for billions of rows; it says what was measured.

    Parameters
    ----------
    pipe
        The pipeline: with row shuffle, block shuffle or none. A batch of a shard is one of the pipeline, whatever their
        number, so `split` does not change the measures.
    batch_size
        Rows of a batch, at most 2^20.
    epoch
        The epoch to measure, counted from 0. Pairs are followed into the next one.
    count
        Whether to count rows by reading, where footers do not state them: with a filter, a transform that changes the
        number of rows, or a format such as CSV. This reads the data once.

    Raises
    ------
    PlanError
        If row counts are unknown and ``count`` is False, the pipeline packs documents or has no rows, or an argument
        is invalid.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa, pyarrow.parquet as pq, windrow
    >>> pq.write_table(pa.table({"x": np.arange(100_000)}), "numbers.parquet", row_group_size=1000)
    >>> ds = windrow.read_parquet("numbers.parquet", target_block_bytes="8KB")
    >>> pipe = ds.window(blocks_per_window=10).repeat(2).random_shuffle_each_window(seed=7)
    >>> print(windrow.shuffle_report(pipe, batch_size=500))
    100,000 rows in 100 row groups, 10 windows, batches of 500: rows shuffled
                                 this order  full shuffle  ratio
    displacement, mean               0.3628        0.3333   1.09
    row groups a batch, mean             10         99.35  0.101
      5 % to 95 % of batches       10 to 10     98 to 100
    pairs that meet again          0.009273       0.00499   1.86
    entropy of neighbours, bits       21.31         21.96   0.97
    distance of neighbours           0.2999        0.3324  0.902
    sample    all 200 full batches of epoch 0
    verdict   a batch draws on 10 % of the row groups of a full shuffle: use larger windows or smaller blocks ...
    """
    rows = check_count(batch_size, "batch_size")
    number = as_integer(epoch)
    if not isinstance(pipe, DatasetPipeline):
        raise PlanError(
            f"shuffle_report: {type(pipe).__name__} has no epochs: give a DatasetPipeline, such as ds.window().repeat()"
        )
    job = pipe._plan.job()
    if number is None or number < 0 or (job.epochs is not None and number >= job.epochs):
        last = "" if job.epochs is None else f" below {job.epochs}"
        raise PlanError(f"epoch={epoch!r} must be an integer of 0 or more{last}")
    return measure_job(job, _count(pipe, job, count=count), batch_rows=rows, epoch=number)


def _count(pipe: DatasetPipeline, job: Job, *, count: bool) -> NDArray[np.int64]:
    """(blocks,) the rows that each block delivers."""
    if job.mixture is not None:
        raise PlanError(
            "shuffle_report() is about the order of one source: report on each source of the mixture"
        )
    if job.packing is not None:
        raise PlanError(
            f"{job.packing} delivers sequences of tokens: report on the pipeline before it, whose rows are documents"
        )
    if job.rows_stated:
        return job.source.blocks.rows
    if not count:
        raise PlanError(
            "the files do not state how many rows each block delivers (a filter, a transform that changes the number "
            "of rows, or a format without row counts): pass shuffle_report(count=True), which reads the data once, or "
            "report on the pipeline without it"
        )
    return count_blocks_of(pipe._plan)
