"""Read a mixture whose shares ramp, jump and are set in the loop, and draw asked and delivered shares over steps.

python docs/examples/shares.py --picture shares.svg
"""

import argparse
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import windrow

STEPS, BATCH_ROWS, CHANGE = 120, 256, 90
NAMES = ("web", "code", "math")
COLOURS = ("#08306b", "#c9781f", "#3f8f5b")
# web yields to code in 40 steps, and math joins at step 60
SCHEDULE = {
    0: {"web": 1},
    **{step: {"web": 1 - step / 80, "code": step / 80} for step in range(1, 41)},
    60: {"web": 0.4, "code": 0.4, "math": 0.2},
}
# by the loop, as if math had the highest loss
SET = {"web": 0.2, "code": 0.3, "math": 0.5}


def read():
    """The rows of each source in each step, and its share then."""
    sources = {
        name: windrow.range(50_000 * (number + 1)).repeat().random_shuffle_each_window(seed=number)
        for number, name in enumerate(NAMES)
    }
    pipe = windrow.mixture(sources, windrow.Shares.steps(SCHEDULE), seed=7, source_column="source")
    rows, asked = np.zeros((STEPS, len(NAMES)), int), np.zeros((STEPS, len(NAMES)))
    with pipe.iterator() as shard:
        for step, batch in zip(range(STEPS), shard.iter_batches(batch_size=BATCH_ROWS), strict=False):
            rows[step] = [int((batch["source"] == name).sum()) for name in NAMES]
            shares = SET if step >= CHANGE else windrow.Shares.steps(SCHEDULE).at(step)
            asked[step] = [shares.get(name, 0) for name in NAMES]
            if step == CHANGE - 1:
                shard.set_shares(SET)
    return rows, asked


def draw(rows, asked, path):
    """Asked shares as lines, those of each batch as dots, and below how many rows each source is ahead."""
    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "windrow"})  # the same data, the same file
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(10, 5.2), height_ratios=[2.4, 1])
    steps, ahead = np.arange(STEPS), np.zeros_like(asked)
    changes = [0, *(1 + np.flatnonzero((np.diff(asked, axis=0) != 0).any(axis=1))), STEPS]
    for first, stop in pairwise(changes):
        ahead[first:stop] = np.cumsum(rows[first:stop] - asked[first:stop] * BATCH_ROWS, axis=0)
    for number, (name, colour) in enumerate(zip(NAMES, COLOURS, strict=True)):
        above.step(steps, asked[:, number], where="mid", color=colour, linewidth=1.2)
        above.plot(steps, rows[:, number] / BATCH_ROWS, ".", color=colour, markersize=4, label=name)
        below.step(steps, ahead[:, number], where="mid", color=colour, linewidth=1.2)
    above.axvline(CHANGE - 0.5, color="#8a8a8a", linestyle="--", linewidth=0.8)
    above.text(CHANGE, 0.93, "set_shares()", fontsize=9, color="#2b2b2b")
    above.set_ylabel("share: lines asked, dots delivered")
    below.set_ylabel("rows ahead")
    below.set_xlabel(f"step, of {BATCH_ROWS} rows")
    below.set_ylim(-1, 1)
    above.legend(loc="center left", frameon=False, fontsize=9)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.7)
    figure.savefig(
        path, dpi=130, bbox_inches="tight", metadata={"Date": None} if path.endswith(".svg") else None
    )
    plt.close(figure)
    return float(np.abs(ahead).max())


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--picture", default="shares.png")
options = parser.parse_args()
most = draw(*read(), options.picture)
print(
    f"{STEPS} steps of {BATCH_ROWS} rows: no source was ever {most + 0.01:.2f} rows ahead of its share, or behind it"
)
