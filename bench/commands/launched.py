"""``python -m bench throughput --launcher torchrun``: ranks that share a run beside as many Ray trainer actors."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from bench.remote.s3_server import NetworkConditions, make_storage_options, open_proxy, serve_folder
from bench.system.console import ProgressLine, print_table
from bench.system.processes import make_torchrun
from bench.throughput.launch import run_rounds
from bench.throughput.options import BenchConfig
from bench.throughput.report import describe_breaches, open_data

_MOST_READ, _LEAST_SPEED = 1.02, 0.9
_SYSTEMS = ("windrow-torchrun", "windrow-ray")
_HEADS = ("ranks", "torchrun s", "actors s", "speed", "tasks", "bytes")
_NOTE = (
    "s: median seconds of an epoch, without the first. speed: of the actors' epoch to that of torchrun. tasks: map "
    "tasks of an epoch under torchrun to those with actors. bytes: bytes that the ranks read from an S3 server in one "
    "epoch to those of the files' columns and footers."
)


def measure_launched(config: BenchConfig, ranks: Sequence[int]) -> int:
    """Measure and print the table; the exit status is 0 if all ratios are met and every row arrived once."""
    line = ProgressLine()
    facts = open_data(config, line)
    rows, missed, breaches = [], [], []
    for number in ranks:
        results = run_rounds(replace(config, systems=_SYSTEMS, trainers=number), facts, line)
        breaches += [f"{number} ranks: {breach}" for breach in describe_breaches(results, facts)]
        if any(result.error for result in results):
            continue
        torchrun, actors = (
            statistics.median(epoch.seconds for epoch in result.epochs if epoch.number) for result in results
        )
        of_torchrun, of_actors = (result.tasks / len(result.epochs) for result in results)
        tasks, bytes_read = of_torchrun / of_actors, _count_bytes(config, number, facts.paths, line)
        values = (torchrun, actors, actors / torchrun, tasks, bytes_read)
        rows.append((str(number), *(f"{value:.3f}" for value in values)))
        if actors / torchrun < _LEAST_SPEED or max(tasks, bytes_read) > _MOST_READ:
            missed.append(str(number))
    goal = f"speed of at least {_LEAST_SPEED}, tasks and bytes of at most {_MOST_READ}"
    verdict = f"missed with {', '.join(missed)} ranks" if missed else "met"
    print_table(_HEADS, rows, (), _NOTE, f"{goal}: {verdict}", *breaches)
    return int(bool(missed or breaches))


def _count_bytes(config: BenchConfig, ranks: int, paths: Sequence[str], line: ProgressLine) -> float:
    """Bytes that one epoch of ranks reads from an S3 server, to the bytes of one pass."""
    line.start(f"{ranks} ranks, bytes from S3")
    folder = Path(paths[0]).parent
    expected = sum(map(_pass_bytes, paths))
    with serve_folder(folder.parent) as server, open_proxy(*server) as proxy:
        arguments = [proxy.endpoint, folder.name, config.window or ""]
        command = make_torchrun(ranks, "bench.commands.launched", *arguments)
        with tempfile.TemporaryFile() as output:
            subprocess.run(command, check=True, stdout=output, stderr=output)
        read = proxy.set(NetworkConditions())
    line.finish(f"{read / 1e6:,.1f} MB for {expected / 1e6:,.1f} MB")
    return read / expected


def _pass_bytes(path: str) -> int:
    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        chunks = [group.column(at) for group in groups for at in range(group.num_columns)]
        return int(sum(chunk.total_compressed_size for chunk in chunks)) + int(metadata.serialized_size)


def read_pass(endpoint: str, folder: str, window: str) -> None:
    import windrow

    dataset = windrow.read_parquet(f"s3://{folder}", storage_options=make_storage_options(endpoint))
    pipe = dataset.window(bytes_per_window=window) if window else dataset
    shuffled = pipe.repeat(1).random_shuffle_each_window(seed=7).options(progress=False)
    with shuffled.shard() as shard:
        for _ in shard.iter_batches(batch_size=65_536):
            pass


if __name__ == "__main__":
    read_pass(*sys.argv[1:])
