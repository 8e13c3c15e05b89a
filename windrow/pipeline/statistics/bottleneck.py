"""Finds what limits a run from where its trainers' time went, and says it in a sentence with a fix; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from windrow.core.byte_sizes import format_bytes
from windrow.pipeline.statistics.phases import (
    COLLATE,
    CPUS,
    DECODE,
    DEVICE,
    LABELS,
    MEMORY,
    OTHER,
    PREPARE,
    SHUFFLE,
    START,
    STORAGE,
    TRANSFER,
    TRANSFORM,
    TaskProfile,
    TrainerStats,
    add_seconds,
)

TRAINERS = "trainers"
# below this share of their time, trainers hardly wait
_HARDLY = 0.05
# a start of this share of the time is told from the waiting
_NOTABLE_START = 0.01
_SMALL_REQUEST_BYTES = 2**20
_MANY_RETRIES = 0.02
# opening a file of less costs a good part of what decoding it does
_SMALL_FILE_BYTES = 256 * 2**10
_MANY_FILES = 100
# decoding and shuffling that are on a core less than this share of their time lack one
_CORE_SHARE = 0.5
_NO_TASKS = TaskProfile()
_UNCOMPRESSED = "uncompressed"
_CACHE = 'decoded blocks with options(cache="memory") or options(cache="disk")'
_PROCESSES = 'compute="processes" or ActorPool(...)'
_MORE_PROCESSES = "give {} more workers with ActorPool(max_size=)"
_FAST_CODECS = ("lz4", "snappy", _UNCOMPRESSED)

_SUBJECTS = {
    STORAGE: "Reading from storage limits",
    DECODE: "Decoding limits",
    TRANSFORM: "Transforms before the shuffle limit",
    SHUFFLE: "Shuffling limits",
    TRANSFER: "The transfer of rows to the trainers limits",
    PREPARE: "Transforms after the shuffle limit",
    COLLATE: "Making batches (collate_fn, or the conversion to tensors) limits",
    DEVICE: "Copying batches to the device limits",
    MEMORY: "Memory limits",
    CPUS: "Too few free CPUs limit",
    START: "Starting limits",
}


@dataclass(frozen=True)
class PipelineFacts:
    """What the diagnosis has to know of a pipeline."""

    executor: str = "threads"
    # whether its files are in object storage
    is_remote: bool = False
    epochs: int | None = None
    prefetch_windows: int = 1
    cache: str | None = None
    # whether it was measured what trainers waited for
    profiled: bool = True
    # the transforms before and after the shuffle
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    # those of them that run in processes of their own
    in_processes: tuple[str, ...] = ()
    # whether its trainers are ranks of a launcher
    is_launched: bool = False
    # of most of the bytes in its files, such as "zstd" or "uncompressed"; empty if they name none
    codec: str = ""
    # files of tables that it reads, and their mean size as stored; 0 for other sources
    files: int = 0
    file_bytes: float = 0.0

    @property
    def has_small_files(self) -> bool:
        """Whether opening files is a good part of reading them."""
        return self.files > _MANY_FILES and self.file_bytes < _SMALL_FILE_BYTES


@dataclass(frozen=True)
class Bottleneck:
    """What limits a run.

    Attributes
    ----------
    cause
        A phase, such as ``"decode"``, or ``"trainers"``; ``"other"`` with ``options(profile=False)``, and for a shard
        that DataLoader workers read.
    wait_share
        The share of their time that trainers waited, without the start of the run.
    cause_share
        The share of that waiting that the cause has; 0 for ``"trainers"``.
    causes
        Seconds that all trainers together waited, by phase, the longest first.
    sentence
        What limits the run, and what to change.
    """

    cause: str
    wait_share: float
    cause_share: float
    causes: tuple[tuple[str, float], ...]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def find_bottleneck(
    trainers: Sequence[TrainerStats],
    facts: PipelineFacts = PipelineFacts(),
    tasks: TaskProfile = _NO_TASKS,
    *,
    workers: int = 0,
    nodes: int = 1,
    dropped_windows: int = 0,
    missing_libraries: Sequence[str] = (),
) -> Bottleneck:
    """Find what limits a run, and what to change.

    Examples
    --------
    >>> found = find_bottleneck([TrainerStats(0, work_seconds=2.0, waits={"decode": 6.0, "shuffle": 2.0})])
    >>> found.cause, found.wait_share, found.cause_share
    ('decode', 0.8, 0.75)
    """
    waits: dict[str, float] = {}
    for trainer in trainers:
        waits = add_seconds(waits, trainer.waits)
    worked = sum(trainer.work_seconds for trainer in trainers)
    ranked = sorted(((name, s) for name, s in waits.items() if s > 0), key=lambda one: -one[1])
    causes = [(name, seconds) for name, seconds in ranked if name not in (START, OTHER)]
    waited = sum(seconds for name, seconds in ranked if name != START)
    share = waited / (worked + waited) if waited else 0.0
    # the waits of tables include the start, so a share without it says so
    seen = " after the start" if waits.get(START, 0.0) > _NOTABLE_START * (worked + waited) else ""
    if not facts.profiled and share >= _HARDLY:
        sentence = (
            f"Trainers waited {share:.0%} of the time{seen}. What for was not measured: "
            "options(profile=True) measures it."
        )
        return Bottleneck(OTHER, share, 1.0, tuple(ranked), sentence)
    if share < _HARDLY or not causes:
        start = waits.get(START, 0.0)
        return Bottleneck(TRAINERS, share, 0.0, tuple(ranked), _describe_trainers(share, start, worked))
    cause, seconds = causes[0]
    of_waits = seconds / waited
    slowest = _find_slowest(trainers) if cause == MEMORY else None
    if slowest is not None:
        sentence = (
            f"The trainer of shard {slowest.name} limits this run: the others waited {share:.0%} of the time{seen}, "
            "mostly for memory that windows take which it has not read yet. Give it less work or a faster machine, so "
            "that all trainers step together, or raise options(memory_limit=...)"
        )
        return Bottleneck(TRAINERS, share, of_waits, tuple(ranked), sentence + ".")
    evidence = f"trainers waited {share:.0%} of the time{seen}, {of_waits:.0%} of that for {LABELS[cause]}"
    if cause in (DECODE, STORAGE) and facts.has_small_files:
        sentence = f"Many small files limit this run: {evidence} ({_describe_files(facts)}"
        return Bottleneck(cause, share, of_waits, tuple(ranked), sentence)
    details = _describe_details(cause, tasks, workers, dropped_windows)
    advice = _advise(cause, facts, tasks, workers < tasks.cores * nodes, missing_libraries)
    names_codec = cause == DECODE and facts.codec not in ("", _UNCOMPRESSED)
    subject = f"Decoding {facts.codec} limits" if names_codec else _SUBJECTS[cause]
    sentence = f"{subject} this run: {evidence}{details}. {advice}."
    return Bottleneck(cause, share, of_waits, tuple(ranked), sentence)


def _describe_files(facts: PipelineFacts) -> str:
    """The rest of the sentence on small files."""
    cache = f", or keep {_CACHE}" if _can_cache(facts) else ""
    return (
        f"{facts.files:,} files of {format_bytes(facts.file_bytes)} on average). Each file is opened and its footer "
        f"parsed. Write larger files, with windrow premix or write_parquet(){cache}."
    )


def _can_cache(facts: PipelineFacts) -> bool:
    return facts.cache is None and facts.epochs != 1


def _describe_trainers(share: float, start: float, worked: float) -> str:
    began = f", apart from {start:.1f} s for the start" if start > _HARDLY * worked else ""
    return (
        f"The trainers limit this run: they waited {share:.1%} of the time{began}. There is nothing to change in the "
        "pipeline: make the training step faster, or use more trainers."
    )


def describe_loader(workers: int) -> str:
    """The sentence of a shard that the workers of a DataLoader read, which measure their own waits."""
    who = "1 worker of a DataLoader reads" if workers == 1 else f"{workers:,} workers of a DataLoader read"
    return (
        f"{who} this shard in other processes, and these statistics do not include what they do. To find what limits "
        "the pipeline, read with num_workers=0, or call torch.utils.data.get_worker_info().dataset.stats() in a "
        "worker, such as in collate_fn."
    )


def _find_slowest(trainers: Sequence[TrainerStats]) -> TrainerStats | None:
    """A trainer that hardly waits although others do."""
    slowest = min(trainers, key=lambda one: one.wait_seconds / max(1e-9, one.seconds))
    hardly = slowest.wait_seconds - slowest.waits.get(START, 0.0) < _HARDLY * slowest.seconds
    return slowest if hardly and len(trainers) > 1 else None


def _describe_details(cause: str, tasks: TaskProfile, workers: int, dropped_windows: int) -> str:
    if cause == TRANSFORM and tasks.functions:
        name = _slowest_function(tasks.functions)
        return f" ({tasks.functions[name] / sum(tasks.functions.values()):.0%} of it in {name})"
    if cause == STORAGE and tasks.requests:
        return f" ({tasks.requests:,} requests of {tasks.requested_bytes / tasks.requests / 1e6:.2g} MB each)"
    if cause == MEMORY and dropped_windows:
        return f" ({dropped_windows:,} windows were dropped and prepared again)"
    if cause in (DECODE, SHUFFLE) and _lacks_cores(tasks):
        share = tasks.cpu_seconds / _own_seconds(tasks)
        return f" (tasks had a core for {share:.0%} of their time: other threads or programs use the CPUs)"
    if cause in (DECODE, SHUFFLE, CPUS) and workers:
        return f" (at most {workers:,} tasks run at once)"
    return ""


def _own_seconds(tasks: TaskProfile) -> float:
    """Seconds of decoding and shuffling, which wait for nothing but a core, the GIL or a local disk."""
    return tasks.phases.get(DECODE, 0.0) + tasks.phases.get(SHUFFLE, 0.0)


def _lacks_cores(tasks: TaskProfile) -> bool:
    return tasks.cpu_seconds < _CORE_SHARE * _own_seconds(tasks)


def _slowest_function(functions: Mapping[str, float]) -> str:
    return max(functions, key=lambda name: functions[name])


def _advise(
    cause: str,
    facts: PipelineFacts,
    tasks: TaskProfile,
    has_free_cores: bool,
    missing_libraries: Sequence[str],
) -> str:
    """What to change, the most effective first."""
    cache = [f"keep {_CACHE}"] if _can_cache(facts) else []
    cpus = "give Ray more CPUs" if facts.executor == "ray" and has_free_cores else "add CPUs"
    slow = _slowest_function(tasks.functions) if tasks.functions else "the transforms"
    advice: list[str]
    if cause == STORAGE:
        small = tasks.requests and tasks.requested_bytes < tasks.requests * _SMALL_REQUEST_BYTES
        retried = tasks.retries > _MANY_RETRIES * max(1, tasks.requests)
        advice = [
            *cache,
            f"read more at once with options(prefetch_windows={facts.prefetch_windows + 1})",
            *(["write larger row groups, so that requests are larger"] if small else []),
            *([f"find out why {tasks.retries:,} requests had to be repeated"] if retried else []),
            "move the data nearer" if facts.is_remote else "use a faster disk",
        ]
    elif cause == DECODE:
        faster = f"a faster codec than {facts.codec}" if facts.codec else "a faster codec"
        slow_codec = facts.codec not in _FAST_CODECS
        advice = [
            *cache,
            "read fewer columns with columns=",
            *([f"write the files with {faster}, such as lz4 or snappy"] if slow_codec else []),
            cpus,
        ]
    elif cause == TRANSFORM:
        in_processes = slow in facts.in_processes
        advice = [
            f"let {slow} work on more rows at once (map_batches with batch_size=None, and vectorised code)",
            _MORE_PROCESSES.format(slow)
            if in_processes
            else f"run it in processes of its own with {_PROCESSES}",
            "write its result once and read that",
        ]
    elif cause == SHUFFLE:
        built = [f"build the C libraries ({', '.join(missing_libraries)})"] if missing_libraries else []
        advice = [*built, "read fewer or narrower columns with columns=", cpus]
    elif cause == TRANSFER:
        advice = [
            "move fewer bytes: read only the columns that are needed with columns=, or drop others before the shuffle",
            "use narrower types",
            "let tasks run where trainers do: use shard(), or split(locality_hints=...)",
        ]
    elif cause == PREPARE:
        inside = [name for name in facts.after if name not in facts.in_processes]
        what = ", ".join(inside) or "them"
        advice = [
            _MORE_PROCESSES.format(", ".join(facts.after))
            if facts.after and not inside
            else f"run {what} in processes of their own with {_PROCESSES}, so that the trainer's process keeps its GIL",
            "vectorise",
            "add CPUs, with Ray also on other nodes",
        ]
    elif cause == COLLATE:
        advice = [
            "do the work of collate_fn in map_batches(), on many rows at once and in parallel",
            "vectorise it",
            "use larger batches",
        ]
    elif cause == DEVICE:
        advice = ["move fewer bytes, with narrower dtypes=", "raise prefetch_batches="]
    elif cause == MEMORY:
        advice = ["raise options(memory_limit=...)", "make windows smaller with window(bytes_per_window=...)"]
    elif facts.executor == "ray" and not facts.is_launched:
        advice = ["let trainers and others hold fewer CPUs (num_cpus=0 for trainers on GPUs)", "add CPUs"]
    else:
        advice = ["let trainers and other programs use fewer threads (torch.set_num_threads())", "add CPUs"]
    if cause in (DECODE, SHUFFLE) and _lacks_cores(tasks):
        advice.insert(0, "free the CPUs of other threads and programs")
    text = advice[0] if len(advice) == 1 else f"{', '.join(advice[:-1])}, or {advice[-1]}"
    return text[0].upper() + text[1:]
