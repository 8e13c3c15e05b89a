"""The diagnosis: from the trainers' totals to the cause, and a sentence with a fix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from windrow.pipeline.statistics.bottleneck import TRAINERS, PipelineFacts, find_bottleneck
from windrow.pipeline.statistics.phases import LABELS, TaskProfile, TrainerStats
from windrow.pipeline.statistics.stats import RunStats, Stats

# cause, subject, what the advice has to name
CASES = [
    ("storage", "Reading from storage limits", ['cache="memory"', "prefetch_windows=2"]),
    ("decode", "Decoding limits", ['cache="memory"', "faster codec", "columns="]),
    ("transform", "Transforms before the shuffle limit", ["more rows at once", "ActorPool"]),
    ("shuffle", "Shuffling limits", ["columns=", "add CPUs"]),
    ("transfer", "The transfer of rows", ["columns=", "locality_hints="]),
    ("prepare", "Transforms after the shuffle limit", ['compute="processes"']),
    ("collate", "Making batches", ["map_batches()"]),
    ("device", "Copying batches to the device limits", ["dtypes="]),
    ("memory", "Memory limits", ["memory_limit", "bytes_per_window"]),
    ("cpus", "Too few free CPUs limit", ["num_cpus=0"]),
]
RAY = PipelineFacts(executor="ray", epochs=3)


def trainer(number: int = 0, seconds: float = 2.0, /, **waits: float) -> TrainerStats:
    return TrainerStats(number, 10, 100, 1000, seconds, waits)


@pytest.mark.parametrize(("cause", "subject", "advice"), CASES)
def test_each_cause_is_named_with_its_fix(cause: str, subject: str, advice: list[str]) -> None:
    others = {name: 0.5 for name, *_ in CASES if name != cause}
    found = find_bottleneck([trainer(**others, **{cause: 6.0})], RAY)
    assert (found.cause, found.causes[0]) == (cause, (cause, 6.0))
    assert found.sentence.startswith(f"{subject}")
    assert f"of that for {LABELS[cause]}" in found.sentence
    for text in advice:
        assert text in found.sentence
    assert found.sentence.endswith(".")


def test_a_share_without_a_start_that_tables_count_says_so() -> None:
    assert "waited 60% of the time, 100%" in find_bottleneck([trainer(decode=3.0, start=0.04)]).sentence
    found = find_bottleneck([trainer(decode=3.0, start=1.0)])
    assert found.wait_share == 0.6
    assert "waited 60% of the time after the start, 100% of that for decoding" in found.sentence
    unmeasured = find_bottleneck([trainer(other=3.0, start=1.0)], PipelineFacts(profiled=False))
    assert "waited 60% of the time after the start." in unmeasured.sentence


@pytest.mark.parametrize("cause", ["transform", "prepare"])
def test_what_runs_in_processes_gets_more_of_them(cause: str) -> None:
    facts = replace(RAY, before=("map(f)",), after=("map(g)",), in_processes=("map(f)", "map(g)"))
    tasks = TaskProfile(functions={"map(f)": 1.0})
    found = find_bottleneck([trainer(**{cause: 6.0})], facts, tasks)
    name = "map(f)" if cause == "transform" else "map(g)"
    assert f"ive {name} more workers with ActorPool(max_size=)" in found.sentence
    assert "compute=" not in found.sentence
    apart = replace(facts, in_processes=())
    assert 'compute="processes"' in find_bottleneck([trainer(**{cause: 6.0})], apart, tasks).sentence


def test_ranks_of_a_launcher_have_no_cpus_of_ray() -> None:
    launched = find_bottleneck([trainer(cpus=6.0)], replace(RAY, is_launched=True))
    assert "set_num_threads" in launched.sentence
    assert "num_cpus" not in launched.sentence


def test_every_phase_but_start_and_other_can_be_a_cause() -> None:
    assert {name for name, *_ in CASES} == LABELS.keys() - {"start", "other"}


@pytest.mark.parametrize("waits", [{}, {"decode": 0.09}, {"start": 10.0, "decode": 0.09}])
def test_trainers_that_hardly_wait_are_the_limit(waits: dict[str, float]) -> None:
    found = find_bottleneck([trainer(**waits)], RAY)
    assert found.cause == TRAINERS
    assert found.sentence.startswith("The trainers limit this run")
    assert "nothing to change in the pipeline" in found.sentence
    assert ("10.0 s for the start" in found.sentence) == ("start" in waits)


def test_a_trainer_that_waits_for_no_known_reason_is_not_blamed_on_a_phase() -> None:
    assert find_bottleneck([trainer(other=5.0)]).cause == TRAINERS


def test_the_waits_of_all_trainers_count() -> None:
    trainers = [trainer(0, decode=1.0), trainer(1, storage=1.5), trainer(2, decode=1.0)]
    found = find_bottleneck(trainers)
    assert (found.cause, round(found.wait_share, 2), round(found.cause_share, 2)) == ("decode", 0.37, 0.57)


def test_a_trainer_that_others_wait_for_is_named() -> None:
    slow = trainer(3, 9.5, decode=0.1)
    found = find_bottleneck([trainer(0, memory=8.0), slow, trainer(4, memory=8.0)], RAY)
    assert found.cause == TRAINERS
    assert found.sentence.startswith("The trainer of shard 3 limits this run")
    alone = find_bottleneck([trainer(0, memory=8.0)], RAY)
    assert alone.cause == "memory"


@pytest.mark.parametrize(
    ("facts", "tasks", "text", "is_said"),
    [
        (PipelineFacts(cache="memory"), {}, "options(cache=", False),
        (PipelineFacts(epochs=1), {}, "options(cache=", False),
        (PipelineFacts(is_remote=True), {}, "move the data nearer", True),
        (PipelineFacts(), {}, "use a faster disk", True),
        (PipelineFacts(), {"requests": 9, "requested_bytes": 9_000}, "larger row groups", True),
        (PipelineFacts(), {"requests": 9, "requested_bytes": 9 * 2**22}, "larger row groups", False),
        (PipelineFacts(), {"requests": 9, "requested_bytes": 9 * 2**22}, "(9 requests of 4.2 MB each)", True),
        (PipelineFacts(), {"requests": 100, "retries": 1}, "repeated", False),
        (PipelineFacts(), {"requests": 100, "retries": 40}, "why 40 requests had to be repeated", True),
    ],
)
def test_the_advice_on_storage_fits_the_pipeline(
    facts: PipelineFacts, tasks: dict[str, Any], text: str, is_said: bool
) -> None:
    found = find_bottleneck([trainer(storage=9.0)], facts, TaskProfile(**tasks))
    assert (text in found.sentence) is is_said


SMALL = PipelineFacts(codec="snappy", files=2_000, file_bytes=20 * 2**10)


@pytest.mark.parametrize("cause", ["decode", "storage"])
def test_many_small_files_are_named(cause: str) -> None:
    found = find_bottleneck([trainer(**{cause: 9.0})], SMALL)
    assert found.cause == cause
    assert found.sentence.startswith(
        "Many small files limit this run: trainers waited 82% of the time, 100% of "
    )
    assert "(2,000 files of 20.0 KiB on average)" in found.sentence
    assert (
        "Write larger files, with windrow premix or write_parquet(), or keep decoded blocks" in found.sentence
    )
    assert found.sentence.endswith(".")
    cached = find_bottleneck([trainer(**{cause: 9.0})], replace(SMALL, cache="memory")).sentence
    assert cached.endswith("Write larger files, with windrow premix or write_parquet().")


@pytest.mark.parametrize(
    ("facts", "waits"),
    [
        (replace(SMALL, files=100), {"decode": 9.0}),
        (replace(SMALL, file_bytes=2**18), {"decode": 9.0}),
        (SMALL, {"shuffle": 9.0}),
        (SMALL, {"transform": 9.0}),
    ],
)
def test_files_that_are_large_or_few_or_not_the_cause_are_not_named(
    facts: PipelineFacts, waits: dict[str, float]
) -> None:
    assert "files of" not in find_bottleneck([trainer(**waits)], facts).sentence


@pytest.mark.parametrize(
    ("codec", "subject", "advice"),
    [
        (
            "zstd",
            "Decoding zstd limits",
            "write the files with a faster codec than zstd, such as lz4 or snappy",
        ),
        ("", "Decoding limits", "write the files with a faster codec, such as lz4 or snappy"),
        ("snappy", "Decoding snappy limits", None),
        ("lz4", "Decoding lz4 limits", None),
        ("uncompressed", "Decoding limits", None),
    ],
)
def test_the_codec_is_named_if_decoding_limits(codec: str, subject: str, advice: str | None) -> None:
    facts = PipelineFacts(codec=codec)
    sentence = find_bottleneck([trainer(decode=9.0)], facts).sentence
    assert sentence.startswith(f"{subject} this run: ")
    assert ("codec" in sentence) == (advice is not None)
    assert advice is None or advice in sentence
    assert "zstd" not in find_bottleneck([trainer(shuffle=9.0)], facts).sentence


def test_the_slowest_transform_is_named() -> None:
    tasks = TaskProfile(functions={"map_batches(quick)": 1.0, "map_batches(slow)": 3.0})
    found = find_bottleneck([trainer(transform=9.0)], RAY, tasks)
    assert "(75% of it in map_batches(slow))" in found.sentence
    assert "let map_batches(slow) work on more rows" in found.sentence.lower()


@pytest.mark.parametrize(("cpu_seconds", "is_said"), [(1.0, True), (9.0, False)])
def test_cpus_that_others_use_are_told(cpu_seconds: float, is_said: bool) -> None:
    tasks = TaskProfile({"decode": 8.0, "shuffle": 2.0}, cpu_seconds=cpu_seconds, cores=2)
    found = find_bottleneck([trainer(decode=9.0)], tasks=tasks, workers=2)
    assert ("tasks had a core for 10% of their time" in found.sentence) is is_said
    assert (". Free the CPUs of other threads and programs, " in found.sentence) is is_said


def test_ray_with_fewer_cpus_than_the_machines_gets_more() -> None:
    tasks = TaskProfile({"decode": 8.0}, 8.0, cores=4)
    sentences = [
        find_bottleneck([trainer(decode=9.0)], RAY, tasks, workers=workers, nodes=2).sentence
        for workers in (4, 8)
    ]
    assert ["give Ray more CPUs" in sentence for sentence in sentences] == [True, False]


def test_dropped_windows_and_missing_libraries_are_told() -> None:
    assert "7 windows were dropped" in find_bottleneck([trainer(memory=9.0)], dropped_windows=7).sentence
    found = find_bottleneck([trainer(shuffle=9.0)], missing_libraries=("_kernels",))
    assert "Build the C libraries (_kernels)" in found.sentence


def test_printed_statistics_are_a_table_of_trainers_and_end_with_the_sentence() -> None:
    run = RunStats(
        tasks=12,
        workers=2,
        profile=TaskProfile({"decode": 3.0, "shuffle": 1.0}, 4.0, {}, 5, 10**7, 1),
        trainers=tuple(trainer(shard, decode=6.0 + shard, storage=0.001) for shard in range(20)),
        dropped_windows=2,
        cache_hits=3,
        cache_misses=1,
        corrupt_blocks=("part-1, row group 2",),
        corrupt_rows=9,
        left_out_rows=3,
    )
    lines = str(Stats(1, 2, trainer(1, decode=1.0), run, RAY)).splitlines()
    assert lines[0] == "shard 1: 2 epochs, 10 batches, 100 rows, 1.0 KiB"
    text = "\n".join(lines)
    assert "12 on 2 workers, 4.0 s: decoding 75%, shuffling 25%" in text
    assert "5 requests, 9.5 MiB, 1 repeated" in text
    assert "3 of 4 blocks found" in text
    assert "2 windows dropped" in text
    assert "1 corrupt block, 9 rows: part-1, row group 2" in text
    assert "left out  3 rows, which no shard gets" in text
    head = next(at for at, line in enumerate(lines) if "worked s" in line)
    assert lines[head].split() == ["trainer", "rows", "rows/s", "worked", "s", "waited", "s", "decode"]
    assert lines[head + 2].split() == ["1", "100", "33", "2.00", "1.00", "1.00"], "this one as of now"
    assert lines[head + 17] == "and 4 more"
    assert lines[-1].startswith("Decoding limits this run")
