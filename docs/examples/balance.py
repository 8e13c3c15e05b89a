"""Read rows of many lengths on four shards with balance and without, and draw how uneven each step is.

python docs/examples/balance.py --picture balance.svg
"""

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import windrow

SHARDS, BATCH_ROWS, STEPS = 4, 16, 60
WAYS = {
    "without balance": (None, "#b3460f", ":"),
    'rows="equal"': (windrow.Balance("tokens", "length ** 2"), "#4c9bd0", "--"),
    'rows="free"': (windrow.Balance("tokens", "length ** 2", rows="free"), "#0b3c5d", "-"),
}


def read(pipe, lengths, balance):
    """(steps, shards): the cost of each shard's batch, and (steps,) that of the most expensive row."""

    def read_shard(shard):
        return [lengths[batch["row"]] ** 2.0 for batch in shard.iter_batches(BATCH_ROWS, balance=balance)]

    with ThreadPoolExecutor(SHARDS) as threads:
        batches = list(threads.map(read_shard, pipe.split(SHARDS, equal=True)))
    costs = np.array([[batch.sum() for batch in of_shard] for of_shard in batches]).T
    return costs, np.array([[batch.max() for batch in of_shard] for of_shard in batches]).max(axis=0)


def draw(pipe, lengths, path):
    """The most expensive shard over the mean of each step, and what is unavoidable because rows stay whole."""
    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "windrow"})  # the same data, the same file
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 3.6))
    places, means = np.arange(STEPS), {}
    for name, (balance, colour, line) in WAYS.items():
        costs, row = read(pipe, lengths, balance)
        mean = costs.mean(axis=1)
        if balance is None:
            least = np.maximum(1, row / mean)
            axes.fill_between(
                places, 1, least[:STEPS], step="mid", color="#c8cdd3", linewidth=0, label="unavoidable"
            )
            means["unavoidable"] = least.mean()
        ratio = costs.max(axis=1) / mean
        means[name] = ratio.mean()
        axes.step(places, ratio[:STEPS], where="mid", color=colour, linestyle=line, linewidth=1.3, label=name)
    axes.set_xlabel(f"step, of {SHARDS} x {BATCH_ROWS} rows")
    axes.set_ylabel("most expensive shard over the mean")
    axes.set_xlim(-0.5, STEPS - 0.5)
    axes.set_ylim(bottom=0.98)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    figure.savefig(
        path, dpi=130, bbox_inches="tight", metadata={"Date": None} if path.endswith(".svg") else None
    )
    plt.close(figure)
    return means


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--picture", default="balance.png")
options = parser.parse_args()
random_lengths = np.maximum(1, np.exp(np.random.default_rng(0).normal(4, 1, 4_000))).astype(int)
with tempfile.TemporaryDirectory() as folder:
    tokens = [list(range(length)) for length in random_lengths.tolist()]
    pq.write_table(pa.table({"row": range(4_000), "tokens": tokens}), Path(folder) / "rows.parquet")
    ds = windrow.read_parquet(Path(folder) / "rows.parquet").options(executor="threads", progress=False)
    found = draw(ds.repeat(1).random_shuffle_each_window(seed=0), random_lengths, options.picture)
print(", ".join(f"{name} {value:.2f}" for name, value in found.items()))
