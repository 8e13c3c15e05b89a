"""LogicalPlan: how the calls of a pipeline combine, and invalid calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.dataset.example_sources import make_source
from windrow.core.errors import PlanError
from windrow.dataset.logical_plan import DEFAULT_WINDOW_BYTES, UNSHUFFLED_WINDOW_BYTES, LogicalPlan
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.epoch_plan import WindowCut

STEPS: dict[str, Callable[[LogicalPlan], LogicalPlan]] = {
    "window": lambda plan: plan.windowed(4, None),
    "repeat": lambda plan: plan.repeated(3),
    "shuffle": lambda plan: plan.shuffled(7),
}


def same(batch: Any) -> Any:
    return batch


def fewer(batch: Any) -> Any:
    return {name: column[:1] for name, column in batch.items()}


@pytest.fixture
def plan() -> LogicalPlan:
    return LogicalPlan(make_source(2, 2))


@pytest.mark.parametrize("order", list(itertools.permutations(STEPS)))
def test_order_of_calls_does_not_matter(plan: LogicalPlan, order: tuple[str, ...]) -> None:
    expected = LogicalPlan(plan.source, cut=WindowCut(blocks_per_window=4), epochs=3, seed=7)
    for step in order:
        plan = STEPS[step](plan)
    assert plan == expected
    assert str(plan) == str(expected)


@pytest.mark.parametrize(
    ("times", "epochs"),
    [
        ((), 1),
        ((1,), 1),
        ((2, 3), 6),
        ((None,), None),
        ((2, None), None),
        ((None, 2), None),
        ((None, None), None),
    ],
)
def test_repeats_multiply(plan: LogicalPlan, times: tuple[int | None, ...], epochs: int | None) -> None:
    for number in times:
        plan = plan.repeated(number)
    assert plan.epochs == plan.job().epochs == epochs


@pytest.mark.parametrize(
    ("given", "cut"),
    [
        ((None, None), WindowCut(bytes_per_window=DEFAULT_WINDOW_BYTES)),
        ((3, None), WindowCut(blocks_per_window=3)),
        ((None, 1000), WindowCut(bytes_per_window=1000)),
        ((None, "2GB"), WindowCut(bytes_per_window=2 * 10**9)),
        ((None, "2GiB"), WindowCut(bytes_per_window=2 * 2**30)),
    ],
)
def test_window_sizes(plan: LogicalPlan, given: tuple[Any, Any], cut: WindowCut) -> None:
    assert plan.windowed(*given).job().cut == cut


def test_default_window_is_the_whole_epoch_if_shuffled_and_small_otherwise(plan: LogicalPlan) -> None:
    assert plan.repeated(2).shuffled(1).job().cut == WindowCut()
    assert plan.repeated(2).job().cut == WindowCut(bytes_per_window=UNSHUFFLED_WINDOW_BYTES)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda c: c.windowed(2, "1GiB"), r"blocks_per_window=2, bytes_per_window='1GiB'\) gives both sizes"),
        (lambda c: c.windowed(2, None).windowed(None, None), r"already has a window \(blocks_per_window=2\)"),
        (lambda c: c.windowed(0, None), r"blocks_per_window=0 must be an integer of 1 or more"),
        (lambda c: c.windowed(True, None), r"blocks_per_window=True must be an integer"),
        (lambda c: c.windowed(2.5, None), r"blocks_per_window=2.5 must be an integer"),
        (lambda c: c.windowed("2", None), r"blocks_per_window='2' must be an integer"),
        (lambda c: c.windowed(None, 0), r"bytes_per_window=0 must be at least 1 byte"),
        (lambda c: c.windowed(None, -1), r"bytes_per_window=-1 must be at least 1 byte"),
        (lambda c: c.windowed(None, "64"), r"bytes_per_window='64' has no unit: write '64MiB'"),
        (lambda c: c.windowed(None, 1.5), r"bytes_per_window=1.5 is not a size"),
        (lambda c: c.repeated(0), r"times=0 must be an integer of 1 or more, or None to repeat forever"),
        (lambda c: c.repeated(-1), r"times=-1 must be"),
        (lambda c: c.repeated(True), r"times=True must be"),
        (lambda c: c.repeated(1.5), r"times=1.5 must be"),
        (lambda c: c.shuffled(1).shuffled(2), r"already shuffles \(seed=1\)"),
        (lambda c: c.shuffled(1).shuffled(None), r"already shuffles \(seed=1\)"),
        (lambda c: c.shuffled(True), r"seed=True must be an integer, or None to draw one"),
        (lambda c: c.shuffled("7"), r"seed='7' must be an integer"),
        (lambda c: c.shuffled(7.5), r"seed=7.5 must be an integer"),
        (
            lambda c: c.shuffled(1).mapped(MapBatches(fewer, preserves_rows=False)),
            r"map_batches\(fewer\) with preserves_rows=False .* call it before the shuffle",
        ),
        (lambda c: c.configured(executor="dask"), r"executor='dask' must be one of 'auto', 'threads', 'ray'"),
        (lambda c: c.configured(memory_limit="8"), r"memory_limit='8' has no unit"),
        (lambda c: c.configured(memory_limit=0), r"memory_limit=0 must be at least 1 byte"),
        (lambda c: c.configured(prefetch_windows=-1), r"prefetch_windows=-1 must be an integer of 0 or more"),
        (lambda c: c.configured(on_error="ignore"), r"on_error='ignore' must be 'raise' or 'skip'"),
        (lambda c: c.configured(progress="yes"), r"progress='yes' must be"),
    ],
)
def test_invalid_calls_raise(plan: LogicalPlan, step: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        step(plan)


def test_maps_run_before_or_after_the_shuffle_as_called(plan: LogicalPlan) -> None:
    first, second = MapBatches(same), MapBatches(fewer, preserves_rows=False)
    third = MapBatches(same, batch_size=3)
    job = plan.mapped(first).repeated(2).mapped(second).shuffled(1).repeated(2).mapped(third).job()
    assert job.before == (first, second)
    assert job.after == (third,)
    assert plan.mapped(first).mapped(third).job().after == ()


def test_default_seed_is_drawn_once(plan: LogicalPlan) -> None:
    drawn, other = plan.shuffled(None), plan.shuffled(None)
    assert drawn.seed_drawn
    assert not plan.shuffled(5).seed_drawn
    assert drawn.seed != other.seed
    assert drawn.job().seed == drawn.repeated(2).job().seed == drawn.seed
    assert f"random_shuffle_each_window(seed={drawn.seed})" in str(drawn)


@pytest.mark.parametrize("seed", [0, -3, 2**80])
def test_any_integer_is_a_seed(plan: LogicalPlan, seed: int) -> None:
    assert plan.shuffled(seed).job().seed == seed


def test_omitted_options_keep_their_values(plan: LogicalPlan) -> None:
    changed = plan.configured(executor="threads", memory_limit="1GiB").configured(
        executor="ray", progress=...
    )
    assert changed.options.executor == "ray"
    assert changed.options.memory_limit == "1GiB"
    assert changed.configured(memory_limit=None).options.memory_limit is None


def test_text_shows_every_call(plan: LogicalPlan) -> None:
    whole = plan.mapped(MapBatches(same)).windowed(None, "1.5GiB").repeated(None).shuffled(7)
    whole = whole.mapped(MapBatches(same, batch_size=2)).configured(prefetch_windows=2)
    assert str(whole).splitlines() == [
        "TableSource(2 tables)",
        "  .map_batches(same)",
        "  .window(bytes_per_window='1.5GiB')",
        "  .repeat()",
        "  .random_shuffle_each_window(seed=7)",
        "  .map_batches(same)",
        "  .options(prefetch_windows=2)",
    ]


def test_text_never_rounds_a_window(plan: LogicalPlan) -> None:
    assert ".window(bytes_per_window=1000000001)" in str(plan.windowed(None, 10**9 + 1))
