"""Drawn meshes under torchrun, each resumed from the last: replicas agree, slices join, and rows come once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.end_to_end.drawn_meshes_script import columns_of, make_pipe
from tests.end_to_end.torchrun_jobs import run_torchrun

pytestmark = [pytest.mark.timeout(2_700), pytest.mark.nightly]
SCRIPT = Path(__file__).with_name("drawn_meshes_script.py")
# what every number of chunks of up to six parts divides
LENGTH = 24
GLOBAL_BATCH = 12
JOBS, CASES = 4, 6
# of a job: each mesh starts a run, which takes six ranks on two cores ten seconds or more
JOB_SECONDS = 600.0


@st.composite
def shapes(draw: st.DrawFn, ranks: int) -> tuple[int, int, int]:
    """Sizes of data, tensor and context dimensions, whose product is the number of ranks."""
    data = draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0]))
    tensor = draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks // data % size == 0]))
    return data, tensor, ranks // data // tensor


@st.composite
def legs(draw: st.DrawFn, ranks: int) -> dict[str, Any]:
    """A mesh, and how many steps it takes; the last leg of a case has no end."""
    data, tensor, context = draw(shapes(ranks))
    steps = draw(st.integers(1, 9))
    return {
        "shape": [data, tensor, context],
        "mesh": draw(st.booleans()),
        "layout": draw(st.sampled_from(["contiguous", "head_tail"])),
        "batch": GLOBAL_BATCH // data,
        "steps": steps,
        "tokens": draw(st.none() | st.integers(0, 3)),
        "reloads": draw(st.none() | st.integers(1, steps)),
        "reloader": draw(st.integers(0, ranks - 1)),
    }


@st.composite
def cases(draw: st.DrawFn, ranks: int) -> dict[str, Any]:
    """Blocks, windows and epochs, and the meshes that read them in turn."""
    found = draw(st.lists(legs(ranks), min_size=1, max_size=3))
    last = draw(legs(ranks)) | {"steps": None}
    return {
        "blocks": draw(st.lists(st.integers(1, 40), min_size=1, max_size=6)),
        "window": draw(st.integers(1, 6)),
        "epochs": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 2**32)),
        "legs": [*found, last],
    }


JOB = st.sampled_from([4, 6]).flatmap(
    lambda ranks: st.tuples(st.just(ranks), st.lists(cases(ranks), min_size=CASES, max_size=CASES))
)


@settings(
    max_examples=JOBS,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(JOB)
def test_drawn_meshes_resume_each_other(tmp_path: Path, job: tuple[int, list[dict[str, Any]]]) -> None:
    ranks, drawn = job
    for number, case in enumerate(drawn):
        case["path"] = str(_write(tmp_path / f"{number}.parquet", case["blocks"]))
    listed = tmp_path / "cases.json"
    listed.write_text(json.dumps(drawn))
    done = run_torchrun(SCRIPT, ranks, [str(listed)], seconds=JOB_SECONDS)
    assert done.code == 0, done.output
    reports = iter(zip(*[done.ranks[rank] for rank in range(ranks)], strict=True))
    for case in drawn:
        state, rows = None, []
        for leg in case["legs"]:
            by_rank = next(reports)
            expected, after = _read_alone(case, leg, state)
            for at, found, own in by_rank:
                assert own == after
                assert found == [_select(step, leg, tuple(at)) for step in expected[at[0]]]
            assert sorted(tuple(at) for at, *_ in by_rank) == list(np.ndindex(*leg["shape"]))
            rows += [(epoch, row) for of_shard in expected for epoch, batch in of_shard for row in batch]
            state = after
        _assert_once(rows, case)
    assert next(reports, None) is None


def _write(path: Path, blocks: list[int]) -> Path:
    """Write a file with these row groups, whose tokens tell row and position."""
    rows = sum(blocks)
    tokens = (np.arange(rows)[:, None] * 100 + np.arange(LENGTH)).astype(np.int64)
    table = pa.table(
        {"row": np.arange(rows), "tokens": pa.FixedSizeListArray.from_arrays(tokens.ravel(), LENGTH)}
    )
    with pq.ParquetWriter(path, table.schema) as writer:
        start = 0
        for size in blocks:
            writer.write_table(table.slice(start, size))
            start += size
    return path


def _read_alone(case: dict[str, Any], leg: dict[str, Any], state: Any) -> tuple[list[list[Any]], Any]:
    """By shard, epoch and rows of each step of a leg, as shards without replicas get them; and the state after it."""
    found, after = [], None
    shards = make_pipe(case, "threads").split(leg["shape"][0], equal=True, state_dict=state)
    for shard in shards:
        steps: list[Any] = []
        # each for itself: they need not be read at once
        with shard:
            for epoch in shard.iter_epochs():
                for batch in epoch.iter_batches(leg["batch"], drop_last=False, columns=["row"]):
                    steps.append([epoch.number, batch["row"].tolist()])
                    if len(steps) == leg["steps"]:
                        break
                if len(steps) == leg["steps"]:
                    break
            after = shard.state_dict()
        found.append(steps)
    return found, after


def _select(step: Any, leg: dict[str, Any], at: tuple[int, int, int]) -> list[Any]:
    """What a rank gets of a step."""
    epoch, rows = step
    if "tokens" not in columns_of(leg, at):
        return [epoch, rows]
    chunks = np.arange(LENGTH).reshape((2 if leg["layout"] == "head_tail" else 1) * leg["shape"][2], -1)
    positions = chunks[at[2]]
    if leg["layout"] == "head_tail":
        positions = np.concatenate([positions, chunks[-1 - at[2]]])
    tokens = np.asarray(rows, np.int64)[:, None] * 100 + positions
    return [epoch, rows, tokens.tolist(), [positions.tolist()] * len(rows)]


def _assert_once(rows: list[tuple[int, int]], case: dict[str, Any]) -> None:
    """Check that all epochs together held each row once, up to those that equal shards drop."""
    assert len(set(rows)) == len(rows)
    total = sum(case["blocks"]) * case["epochs"]
    most = max(leg["shape"][0] for leg in case["legs"]) - 1
    assert total - most * case["epochs"] <= len(rows) <= total
