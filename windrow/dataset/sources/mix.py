"""mix: a weighted mixture of datasets."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, get_args

from windrow.core.errors import PlanError
from windrow.dataset.argument_checks import check_seed
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import DRAWN_SEED_BITS, check_columns, rearranged_plan
from windrow.pipeline.exchange.layouts import MixedBlocks

StoppingStrategy = Literal["first_exhausted", "all_exhausted"]


def mix(
    datasets: Sequence[Dataset],
    weights: Sequence[float] | None = None,
    *,
    seed: int | None = None,
    stopping_strategy: StoppingStrategy = "first_exhausted",
) -> Dataset:
    """Return a mixture of datasets in which the rows of each have a given share.

    The mixture is a dataset: its epochs are cut into windows and shuffled like those of any other, and a checkpoint
    continues it. It consists of whole blocks of the datasets, in an order that is a function of data, weights and seed,
    and in which every stretch has about the shares of the whole. So a window mixes well where it has many blocks.
    Row counts that are not known are counted first.

    Parameters
    ----------
    datasets
        The datasets; they have the same columns, in any order.
    weights
        (datasets,) positive numbers, the share of each dataset in the rows. None: equal shares.
    seed
        Any integer; it chooses the order of each dataset's blocks. None: a seed is drawn now; ``repr`` shows it.
    stopping_strategy
        ``"first_exhausted"``: no row comes twice; the mixture is as long as the first dataset lasts, and leaves out
        rows of the others, the same in each epoch. ``"all_exhausted"``: every row comes at least once; the rows
        of datasets that are too small for their share come again. The names are those of Hugging Face's
        ``interleave_datasets``.

    Raises
    ------
    PlanError
        If an argument is invalid, or a dataset has no rows.
    SourceError
        If columns or types do not unify; the message names the column.

    Examples
    --------
    >>> import windrow
    >>> web = windrow.range(60).add_column("of", lambda batch: ["web"] * len(batch["id"]))
    >>> books = windrow.range(10).add_column("of", lambda batch: ["books"] * len(batch["id"]))
    >>> mixed = windrow.mix([web, books], [0.75, 0.25], seed=7)
    >>> mixed.groupby("of").count().take()
    [{'of': 'books', 'count()': 10}, {'of': 'web', 'count()': 30}]
    >>> windrow.mix([web, books], [0.75, 0.25], seed=7, stopping_strategy="all_exhausted").count()
    80
    """
    given = list(datasets) if isinstance(datasets, Sequence) else []
    if not given or not all(isinstance(dataset, Dataset) for dataset in given):
        raise PlanError(f"mix({datasets!r}): give a list of datasets; window() and repeat() come after mix()")
    shares = [1] * len(given) if weights is None else list(weights)
    if len(shares) != len(given):
        raise PlanError(f"mix: {len(shares)} weights for {len(given)} datasets: give one for each")
    for weight in shares:
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
            raise PlanError(f"mix: weight {weight!r} must be a number above 0: leave out what is not wanted")
    if stopping_strategy not in get_args(StoppingStrategy):
        raise PlanError(
            f"stopping_strategy={stopping_strategy!r} must be 'first_exhausted' or 'all_exhausted'"
        )
    drawn = secrets.randbits(DRAWN_SEED_BITS) if seed is None else check_seed(seed)
    exact = [Fraction(weight) for weight in shares]
    layout = MixedBlocks(
        tuple(weight / sum(exact) for weight in exact), drawn, stopping_strategy == "all_exhausted"
    )
    plans = [dataset._plan for dataset in given]
    check_columns(plans, "mix()")
    call = f"mix(weights={shares}, seed={drawn}, stopping_strategy={stopping_strategy!r})"
    return Dataset(rearranged_plan(plans, layout, call))
