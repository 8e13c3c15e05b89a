"""Steps that are divided by cost, and the runs in which their rows travel, against a model that divides whole steps."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from windrow.shuffle.kernels import native
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import Equal, ShardAssignment
from windrow.shuffle.order.step_balance import balance_steps
from windrow.shuffle.order.step_rows import divide_rows
from windrow.shuffle.order.step_runs import StepDestinations, lay_out_steps
from windrow.shuffle.order.step_sequences import divide_sequences

Batches = dict[int, list[list[int]]]


@st.composite
def _cases(draw: st.DrawFn) -> dict[str, Any]:
    workers = draw(st.sampled_from([1, 1, 2, 3]))
    shards = draw(st.integers(1, 4)) * workers
    batch_rows = draw(st.integers(1, 5))
    seq_len = draw(st.sampled_from([1, 1, 2, 5]))
    # tokens, of which the last ones can make no whole sequence
    total = draw(st.integers(0, 60)) * seq_len + draw(st.integers(0, seq_len - 1))
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=4)))
    equal: Equal = draw(st.sampled_from([True, False, "pad"]))
    balance = Balance(
        "c",
        draw(st.sampled_from(["length", "length ** 2", "0 * length"])),
        draw(st.sampled_from(["equal", "free"])),
        draw(st.integers(1, 3)),
    )
    return {
        "assignment": ShardAssignment(
            shards,
            batch_rows * seq_len,
            equal,
            draw(st.booleans()),
            draw(st.integers(0, shards * batch_rows - 1)) * seq_len,
            workers,
            seq_len,
            balance=balance,
        ),
        "balance": balance,
        "total": total,
        "windows": list(pairwise([0, *cuts, total])),
        "measures": np.array(
            draw(st.lists(st.integers(0, 50), min_size=total // seq_len, max_size=total // seq_len)),
            np.float32,
        ),
        "run_rows": draw(st.integers(1, 4)) * batch_rows * seq_len,
        "slices": draw(st.integers(1, 3)),
        "split": draw(st.integers(1, shards)),
    }


def _expected(
    assignment: ShardAssignment, balance: Balance, total: int, measures: NDArray[np.float32]
) -> Batches:
    """By shard, the rows of each of its batches in order of microbatches, divided unit by unit."""
    seq_len = assignment.sequence_rows
    if seq_len > 1:
        # sequences are divided as rows, and their tokens stay together
        of_sequences = _expected(assignment.of_sequences, balance, total // seq_len, measures)
        return {
            shard: [[row * seq_len + at for row in batch for at in range(seq_len)] for batch in batches]
            for shard, batches in of_sequences.items()
        }
    found: Batches = {shard: [] for shard in range(assignment.shards)}
    trainers = assignment.shards // assignment.workers
    unit, costs = trainers * assignment.batch_rows, balance.costs(measures)
    starts = range(assignment.start_row, total, unit)
    for number, start in enumerate(starts):
        rows = np.arange(start, min(start + unit, total))
        worker = number % assignment.workers
        of_shards = [worker * trainers + trainer for trainer in range(trainers)]
        if len(rows) < unit:
            shares = [assignment.rest_share(total, shard)[1] for shard in of_shards]
            kept = min(sum(shares), len(rows))
            if assignment.equal is True or assignment.drop_last:
                rows = rows[:kept]
            is_free = balance.rows == "free" and min(shares) > 0 and assignment.equal != "pad"
            room = None if is_free else np.array(shares)
            if not sum(shares):
                continue
        else:
            room = None if balance.rows == "free" else np.full(trainers, assignment.batch_rows)
        to = balance_steps(costs[rows], np.array([0, len(rows)]), trainers, room)
        repeats = 0
        for trainer, shard in enumerate(of_shards):
            own = rows[to == trainer]
            parts = balance_steps(costs[own], np.array([0, len(own)]), balance.microbatches, None)
            batch = [int(row) for part in range(balance.microbatches) for row in own[parts == part]]
            if room is not None and assignment.equal == "pad":
                missing = int(room[trainer]) - len(batch)
                batch += [int(rows[(repeats + k) % len(rows)]) for k in range(missing)]
                repeats += missing
            if batch:
                found[shard].append(batch)
    return found


def _number_tokens(numbers: NDArray[Any], tokens: NDArray[np.int64]) -> NDArray[Any]:
    """(tokens,) the number of each token, given that of the first one of each sequence."""
    within = np.arange(tokens.sum()) - np.repeat(np.cumsum(tokens) - tokens, tokens)
    return np.repeat(numbers, tokens) + within


def _delivered(case: dict[str, Any], alone: int | None = None) -> Batches:
    """The same, from the runs of all windows; ``alone``: of one shard, where others are served elsewhere."""
    assignment, total = case["assignment"], case["total"]
    # by shard and step, the rows of each microbatch
    steps: dict[int, dict[int, dict[int, list[int]]]] = {
        shard: defaultdict(lambda: defaultdict(list)) for shard in range(assignment.shards)
    }
    destinations = [
        tuple(range(case["split"])),
        *[(shard,) for shard in range(case["split"], assignment.shards)],
    ]
    if alone is not None:
        destinations = [(alone,)]
    padding: list[tuple[int, int, int]] = []
    for first, stop in case["windows"]:
        divide = divide_rows if assignment.sequence_rows == 1 else divide_sequences
        costs = case["balance"].costs(case["measures"])
        divided = divide(assignment, window=(first, stop), total=total, low=0, costs=costs)
        layouts, numbers = lay_out_steps(
            divided, destinations=destinations, run_rows=case["run_rows"], slices=case["slices"]
        )
        if divided.tokens is not None:
            numbers = _number_tokens(numbers, divided.tokens)
        destinations_of_rows = StepDestinations([each.for_tasks for each in layouts])
        sources, runs, places = destinations_of_rows.assign(numbers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "LIBRARY", None)
            _, twin_runs, twin_places = destinations_of_rows.assign(numbers)
        assert runs.tolist() == twin_runs.tolist()
        assert places.tolist() == twin_places.tolist()
        rows = np.arange(first, stop) if sources is None else np.arange(first, stop)[sources]
        held = {(int(run), int(place)): int(row) for run, place, row in zip(runs, places, rows, strict=True)}
        end = 0
        for layout in layouts:
            for shard in layout.shards:
                stream = []
                for run in layout.runs(shard):
                    number = end + int(layout.slice_starts[run.slice]) + run.index
                    stream += [held[number, place] for place in range(run.rows)]
                for run in layout.padding_runs(shard):
                    number = end + int(layout.slice_starts[run.slice]) + run.index
                    padding += [(shard, run.place + place, held[number, place]) for place in range(run.rows)]
                pieces = layout.pieces_from(0, shard)
                of_pieces = zip(*(column.tolist() for column in pieces[:3]), strict=True)
                for step, microbatch, rows in of_pieces:
                    steps[shard][step][microbatch] += stream[:rows]
                    del stream[:rows]
                assert not stream
            end += int(layout.slice_starts[-1])
    found = {
        shard: [[row for part in sorted(parts) for row in parts[part]] for _, parts in sorted(of.items())]
        for shard, of in steps.items()
    }
    for shard, _, row in sorted(padding):
        step = assignment.steps(total, shard) - 1
        if len(found[shard]) <= step:
            found[shard].append([])
        found[shard][-1].append(row)
    return found


@given(_cases())
def test_windows_deliver_each_step_as_it_is_divided_as_a_whole(case: dict[str, Any]) -> None:
    expected = _expected(case["assignment"], case["balance"], case["total"], case["measures"])
    assert _delivered(case) == expected


@given(_cases(), st.data())
def test_a_shard_that_is_served_alone_gets_its_rows(case: dict[str, Any], data: st.DataObject) -> None:
    shard = data.draw(st.integers(0, case["assignment"].shards - 1))
    expected = _expected(case["assignment"], case["balance"], case["total"], case["measures"])
    found = _delivered(case, shard)
    assert found.pop(shard) == expected[shard]
    assert not any(found.values())


@given(_cases())
def test_the_rows_of_a_step_are_those_without_balance(case: dict[str, Any]) -> None:
    assignment, total = case["assignment"], case["total"]
    found = _delivered(case)
    for step in range(assignment.steps(total, 0)):
        own = [batches[step] for batches in found.values() if step < len(batches)]
        plain = [
            assignment.rows_of_step(step + assignment.start_row // assignment.step_rows, shard, total)
            for shard in range(assignment.shards)
        ]
        rows = [row for each in plain if each is not None for row in each.tolist()]
        assert {row for batch in own for row in batch} == set(rows)
        if case["balance"].rows == "equal":
            assert [len(batch) for batch in own] == [len(each) for each in plain if each is not None]


def test_a_shard_with_many_cheap_rows_gets_its_steps_in_order() -> None:
    # the third shard has more rows of the first step in the first window than a batch has on the mean
    measures = np.array([50, 50, 0, 0, 0, 0] * 2, np.float32)
    balance = Balance("c", rows="free")
    case: dict[str, Any] = {
        "assignment": ShardAssignment(3, 2, balance=balance),
        "balance": balance,
        "total": 12,
        "windows": [(0, 5), (5, 12)],
        "measures": measures,
        "run_rows": 2,
        "slices": 1,
        "split": 3,
    }
    assert _delivered(case) == _expected(case["assignment"], balance, 12, measures)
