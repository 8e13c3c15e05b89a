"""Train one small model on rows that are stored sorted by label, with no shuffle, windows and a full shuffle.

Is a flight late? The accuracy on held-out flights, the seconds of an epoch and the memory that reading took
go to a table and a picture. Each setting runs in a process of its own, so its peak of memory is its own.

    python docs/examples/why_shuffle.py flights-3m.parquet --picture why-shuffle.svg

Without a file, it generates flights whose delays depend on the hour, the airports and the distance.
"""

import argparse
import json
import math
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import windrow

BATCH_SIZE, HELD_OUT, EVALUATIONS, BLOCKS = 2_048, 0.05, 4, 40
# name: where its rows are stored, and the share of the blocks that a window holds (0: one block)
SETTINGS = {
    "no shuffle": ("sorted", None),
    "windows of 1 block": ("sorted", 0),
    "windows of 10 %": ("sorted", 0.1),
    "windows of 25 %": ("sorted", 0.25),
    "full shuffle": ("sorted", 1),
    "windows of 10 %,\nshuffled once on disk": ("mixed", 0.1),
}


def generate_flights(path, rows, seed=7):
    """Write rows with the columns of the flights data; the delay depends on hour, airports and distance."""
    random = np.random.Generator(np.random.Philox(seed))
    origin, destination = random.integers(0, 40, rows), random.integers(0, 40, rows)
    minutes, distance = np.sort(random.integers(0, 180 * 1_440, rows)), random.integers(100, 2_500, rows)
    mean = 12 * np.sin(minutes / 1_440 * 2 * math.pi) + 0.5 * (origin - destination) + distance / 250 - 5
    items = {
        "date": np.datetime64("2001-01-01", "us") + minutes.astype("timedelta64[m]"),
        "delay": (mean + 8 * random.standard_normal(rows)).astype(np.int64),
        "distance": distance,
        "origin": np.array([f"A{number:02}" for number in range(40)])[origin],
        "destination": np.array([f"A{number:02}" for number in range(40)])[destination],
    }
    windrow.from_numpy(items).write_parquet(path)


def add_features(batch, airports):
    """Numbers instead of texts and times; the label is whether the flight was late at all."""
    minutes = batch["date"].astype("datetime64[m]").astype(np.int64)
    return {
        "late": (batch["delay"] > 0).astype(np.float32),
        "hour": minutes // 60 % 24,
        "weekday": minutes // 1_440 % 7,
        "origin": np.searchsorted(airports, batch["origin"].astype(airports.dtype)),
        "destination": np.searchsorted(airports, batch["destination"].astype(airports.dtype)),
        "distance": (batch["distance"] / 1_000).astype(np.float32),
    }


def store_sorted(flights, folder):
    """Hold out flights, and store the others sorted by label, and in a random order; return the number of airports."""
    ds = windrow.read_parquet(flights)
    names = {name for column in ("origin", "destination") for name in ds.unique(column)}
    airports = np.array(sorted(names))
    features = ds.map_batches(add_features, fn_args=(airports,))
    train, held_out = features.train_test_split(HELD_OUT, seed=7)
    held_out.write_parquet(folder / "held-out")
    train.sort("late").repartition(BLOCKS).write_parquet(folder / "sorted")
    train.random_shuffle(seed=7).repartition(BLOCKS).write_parquet(folder / "mixed")
    return len(airports)


class Model(torch.nn.Module):
    """Embeddings of what has no order, and two layers."""

    def __init__(self, airports):
        super().__init__()
        sizes = {"hour": 24, "weekday": 7, "origin": airports, "destination": airports}
        self.embeddings = torch.nn.ModuleDict({k: torch.nn.Embedding(n, 8) for k, n in sizes.items()})
        self.layers = torch.nn.Sequential(torch.nn.Linear(33, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, batch):
        embedded = [embed(batch[name]) for name, embed in self.embeddings.items()]
        return self.layers(torch.cat([*embedded, batch["distance"][:, None]], dim=1))[:, 0]


def measure_accuracy(model, rows):
    with torch.no_grad():
        return ((model(rows) > 0) == (rows["late"] > 0.5)).float().mean().item()


def read_memory(field):
    """Return this process's memory (VmRSS) or its peak (VmHWM) in MB, as Linux tells it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    return math.nan


def train(folder, stored, airports, share, epochs):
    """Train one setting; runs in a process of its own."""
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = Model(airports)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    held_out = next(windrow.read_parquet(folder / "held-out").iter_torch_batches(batch_size=200_000))
    ds = windrow.read_parquet(folder / stored, target_block_bytes=1)  # a file is a block
    pipe = ds.repeat(epochs)
    if share is not None:
        blocks = max(1, round(share * ds.num_blocks()))
        pipe = ds.window(blocks_per_window=blocks).repeat(epochs).random_shuffle_each_window(seed=7)
    accuracies, seconds = [(0.0, measure_accuracy(model, held_out))], []
    at_start, cpu = read_memory("VmRSS"), time.process_time()
    with pipe.options(executor="threads", progress=False).iterator() as shard:
        for epoch in shard.iter_epochs():
            batches = epoch.iter_torch_batches(batch_size=BATCH_SIZE)
            steps, start = len(batches), time.perf_counter()
            for step, batch in enumerate(batches, 1):
                loss = torch.nn.functional.binary_cross_entropy_with_logits(model(batch), batch["late"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step in {steps * part // EVALUATIONS for part in range(1, EVALUATIONS + 1)}:
                    accuracies.append((epoch.number + step / steps, measure_accuracy(model, held_out)))
            seconds.append(time.perf_counter() - start)
        cpu, stats = time.process_time() - cpu, shard.stats()
    late = [accuracy for when, accuracy in accuracies if when > epochs / 2]
    return {
        "accuracies": accuracies,
        "final": accuracies[-1][1],
        "least": min(late),
        "seconds": sorted(seconds)[len(seconds) // 2],
        "cpu": cpu / epochs,
        "held": stats.run.peak_held_bytes / 1e6,
        "memory": read_memory("VmHWM") - at_start,
    }


def format_table(results):
    head = (
        "setting",
        "accuracy at the end",
        "lowest in the second half",
        "s an epoch",
        "CPU s an epoch",
        "MB held",
        "MB, peak",
    )
    rows = [
        (
            " ".join(name.split()),
            f"{r['final']:.3f}",
            f"{r['least']:.3f}",
            f"{r['seconds']:.1f}",
            f"{r['cpu']:.1f}",
            f"{r['held']:.1f}",
            f"{r['memory']:.0f}",
        )
        for name, r in results.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ("---",) * len(head), *rows])


def draw(results, path):
    """Draw the accuracy of each setting against epochs, and beside it what each costs."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "windrow"})  # the same data, the same file
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(14, 5.6))
    panels, costs = figure.add_gridspec(1, 2, width_ratios=[3, 1.1], wspace=0.42)
    panels, costs = panels.subgridspec(2, 3, hspace=0.42, wspace=0.12), costs.subgridspec(2, 1, hspace=0.42)
    reference, first = results["full shuffle"]["accuracies"], None
    for number, (name, result) in enumerate(results.items()):
        first = axes = figure.add_subplot(panels[number], sharex=first, sharey=first)
        own = name == "full shuffle"
        axes.plot(
            *zip(*reference, strict=True),
            color="#9a9a9a",
            linestyle="--",
            label=None if own else "full shuffle",
        )
        axes.plot(
            *zip(*result["accuracies"], strict=True),
            color="#08306b",
            marker="o",
            markersize=3,
            label="this setting",
        )
        axes.set_title(name, fontsize=10, loc="left")
        axes.tick_params(labelleft=number % 3 == 0)
        axes.set_xlabel("epochs" if number >= 3 else "")
        axes.set_ylabel("accuracy, held out" if number % 3 == 0 else "")
        axes.set_xticks(range(int(result["accuracies"][-1][0]) + 1))
        if number == len(results) - 1:
            axes.legend(loc="lower right", fontsize=9, frameon=False)
    names, places = list(results), range(len(results))
    for row, (key, title) in enumerate(
        (("cpu", "CPU seconds an epoch, training included"), ("memory", "peak memory, MB above the start"))
    ):
        axes = figure.add_subplot(costs[row])
        values = [result[key] for result in results.values()]
        axes.barh(places, values, color="#c8cdd3", edgecolor="#2b2b2b")
        for place, value in zip(places, values, strict=True):
            axes.text(
                value + max(values) * 0.02,
                place,
                f"{value:,.1f}" if value < 10 else f"{value:,.0f}",
                va="center",
                fontsize=9,
            )
        axes.set_xlim(0, max(values) * 1.2)
        axes.set_yticks(places, names, fontsize=9)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=10, loc="left")
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(
        path, dpi=130, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None
    )
    plt.close(figure)


def run_in_process(function, *arguments):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main(arguments=None, run=run_in_process):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("flights", nargs="?", help="flights-3m.parquet; none: generated flights")
    parser.add_argument("--rows", type=int, default=400_000, help="of generated flights (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--picture", type=Path, help="a PNG or SVG file")
    parser.add_argument("--json", type=Path, help="what was measured")
    options = parser.parse_args(arguments)
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.flights is None:
            generate_flights(folder / "generated", options.rows)
        airports = store_sorted(options.flights or folder / "generated", folder)
        for name, (stored, share) in SETTINGS.items():
            results[name] = run(train, folder, stored, airports, share, options.epochs)
            print(f"{' '.join(name.split())}: {results[name]['final']:.3f}", flush=True)
    print(format_table(results))
    if options.json:
        options.json.write_text(json.dumps(results))
    if options.picture:
        draw(results, options.picture)


if __name__ == "__main__":
    main()
