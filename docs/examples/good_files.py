"""Write the same rows as files of many kinds, and measure shuffled epochs of each.

python docs/examples/good_files.py
"""

import argparse
import os
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import windrow

WARM_EPOCHS, EPOCHS = 2, 5
HEADS = ("files", "groups", "blocks", "MB", "plan s", "s", "CPU s", "groups a batch")


def make_rows(rows):
    """Two columns whose values hardly repeat, three whose values often do."""
    random = np.random.Generator(np.random.Philox(7))
    return pa.table(
        {
            "id": np.arange(rows),
            "price": random.random(rows),
            "quantity": random.integers(0, 100, rows),
            "product": random.integers(0, 5_000, rows),
            "country": pa.array([f"country {n}" for n in range(50)]).take(
                pa.array(random.integers(0, 50, rows))
            ),
        }
    )


def make_wide(rows):
    random = np.random.Generator(np.random.Philox(7))
    return pa.table({f"x{n}": random.random(rows, np.float32) for n in range(1_000)})


def write(folder, table, *, file_rows=None, group_rows=100_000, **options):
    """Write files of some rows each, in row groups of some rows each."""
    file_rows = file_rows or table.num_rows
    for number, first in enumerate(range(0, table.num_rows, file_rows)):
        path = os.path.join(folder, f"part-{number:06}.parquet")
        pq.write_table(table.slice(first, file_rows), path, row_group_size=group_rows, **options)


def measure(folder, batch_rows=1_024):
    """Seconds of planning, the median of some epochs, and the row groups of a batch in windows of an eighth."""
    begin = time.perf_counter()
    dataset = windrow.read_parquet(folder)
    pipe = dataset.repeat(WARM_EPOCHS + EPOCHS).random_shuffle_each_window(seed=7)
    pipe = pipe.options(executor="threads", progress=False)
    planned, times = time.perf_counter() - begin, []
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            begin, begin_cpu = time.perf_counter(), time.process_time()
            for _ in epoch.iter_batches(batch_size=8 * batch_rows, batch_format="pyarrow"):
                pass
            times.append((time.perf_counter() - begin, time.process_time() - begin_cpu))
    seconds, cpu_seconds = np.median(times[WARM_EPOCHS:], axis=0)
    windows = dataset.window(bytes_per_window=max(1, dataset.size_bytes() // 8)).repeat(1)
    report = windrow.shuffle_report(windows.random_shuffle_each_window(seed=7), batch_size=batch_rows)
    paths = [entry.path for entry in os.scandir(folder)]
    groups = (
        sum(pq.read_metadata(path).num_row_groups for path in paths[:100]) * len(paths) // len(paths[:100])
    )
    stored = sum(map(os.path.getsize, paths)) / 1e6
    return (
        f"{len(paths):,}",
        f"{groups:,}",
        f"{dataset.num_blocks():,}",
        f"{stored:.1f}",
        f"{planned:.3f}",
        f"{seconds:.3f}",
        f"{cpu_seconds:.3f}",
        f"{report.groups_per_batch.mean:.4g}",
    )


def list_layouts(rows):
    """Name, table and options of each layout."""
    table, few, wide = make_rows(rows), make_rows(rows // 8), make_wide(max(1, rows // 200))
    for group_rows in (1_000, 10_000, 100_000, rows // 8):
        yield f"row groups of {group_rows:,} rows", table, {"group_rows": group_rows}
    yield "one row group", table, {"group_rows": rows}
    yield "one row group, page index", table, {"group_rows": rows, "write_page_index": True}
    for file_rows in (100, 1_000, 10_000, rows // 8):
        yield f"an eighth: files of {file_rows:,} rows", few, {"file_rows": file_rows}
    for codec in ("none", "lz4", "snappy", "zstd", "gzip"):
        yield f"codec {codec}", table, {"compression": codec}
    yield "codec snappy, no dictionaries", table, {"use_dictionary": False}
    for group_rows in (100, 1_000, 10_000, 20_000):
        yield f"1,000 columns, row groups of {group_rows:,}", wide, {"group_rows": group_rows}


def print_row(name, cells):
    print(f"{name:38}" + "".join(f"{cell:>9}" for cell in cells[:-1]) + f"{cells[-1]:>16}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--only", default="", help="layouts whose name has this text")
    options = parser.parse_args()
    print_row("layout", HEADS)
    for name, table, written in list_layouts(options.rows):
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            write(folder, table, **written)
            print_row(name, measure(folder))


if __name__ == "__main__":
    main()
