"""The validated configuration of a benchmark, and the requests and data that follow from it."""

from __future__ import annotations

import glob
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.data import make_data
from bench.facts import Facts
from bench.machine import count_cores, read_memory_bytes
from bench.peers import PEERS
from bench.progress import ProgressLine
from bench.request import Request
from bench.rivals.environments import find_python
from bench.rivals.sample import name_files

__all__ = ["BenchConfig", "find_data", "make_request"]

_STORE_SHARE = 0.3
_LABELS = ("labels", "total_amount")


@dataclass(frozen=True)
class BenchConfig:
    """Configuration of a measurement of several systems on the same files.

    ``systems`` are names in ``bench.peers.PEERS`` in the order in which they run; ``trainers``
    None means one on threads and two on Ray. ``rival_epochs`` is the number of epochs of rivals.
    """

    kind: str
    size_bytes: int
    data: str | None
    key: str
    columns: tuple[str, ...] | None
    systems: tuple[str, ...]
    trainers: int | None
    epochs: int
    rival_epochs: int
    rounds: int
    window: str | None
    batch_size: int
    equal: bool
    train: bool
    label: str | None
    seed: int
    memory_limit: str | None
    object_store_bytes: int | None
    timeout_seconds: float
    folder: Path
    json: Path | None
    plot: Path | None
    block: str | None = None
    watch_store: bool = False
    cache: str | None = None
    cache_limit: str | None = None
    paced: bool = False
    computing: bool = False


def find_data(config: BenchConfig, line: ProgressLine) -> list[str]:
    """The given Parquet files, or generated ones that are reused by later runs.

    Raises
    ------
    ValueError
        If there is no file.
    """
    if config.data is not None:
        place = Path(config.data)
        found = place.glob("**/*.parquet") if place.is_dir() else map(Path, glob.glob(config.data))
        paths = sorted(str(path.resolve()) for path in found)
        if not paths:
            raise ValueError(
                f"{config.data} is not a Parquet file, a folder of Parquet files, or a matching glob"
            )
        return paths
    line.start(f"generating {config.kind} data of {config.size_bytes / 1e6:,.0f} MB")

    def show(done: int, total: int) -> None:
        line.update(done / total, f"{done} of {total} files")

    made = make_data(
        config.kind,
        config.size_bytes,
        seed=0,
        folder=config.folder / "data",
        workers=count_cores(),
        progress=show,
    )
    line.finish(f"{len(made)} files in {made[0].parent}")
    return [str(path.resolve()) for path in made]


def make_request(config: BenchConfig, system: str, paths: Sequence[str], facts: Facts) -> Request:
    """The request for one system, with the facts about the files."""
    several = system.startswith("windrow-ray") or system in (
        "windrow-torchrun",
        "ray-shuffle-split",
        "ray-start",
    )
    trainers = (config.trainers or (2 if several else 1)) if several or system.startswith("windrow") else 1
    peer = PEERS[system]
    if config.computing and trainers >= count_cores():
        raise ValueError(
            f"--computing takes a core for each of {trainers} trainers, and there are {count_cores()}: "
            "use fewer --trainers, so that the engine has cores"
        )
    return Request(
        system=system,
        paths=tuple(paths),
        columns=tuple(facts.schema.names),
        tensor_columns=facts.tensor_columns,
        list_columns=facts.list_columns,
        rows=facts.rows,
        key=facts.key,
        sum_columns=tuple(facts.sums),
        batch_size=config.batch_size,
        epochs=config.rival_epochs if peer.rival else config.epochs,
        trainers=trainers,
        equal=config.equal,
        window=config.window,
        seed=config.seed,
        categories=facts.categories,
        label=_choose_label(config, facts) if config.train or peer.trains else None,
        rendezvous=_name_rendezvous(config) if trainers > 1 and several else None,
        memory_limit=config.memory_limit,
        cache="memory" if peer.cached else config.cache,
        cache_limit=config.cache_limit,
        paced=config.paced,
        computing=config.computing,
        object_store_bytes=config.object_store_bytes or int(read_memory_bytes() * _STORE_SHARE),
        cores=count_cores(),
        block=config.block,
        watch_store=config.watch_store,
        row_groups=facts.row_groups,
        python=str(find_python(config.folder, peer.environment)) if peer.environment else None,
        converted=str((config.folder / "converted" / name_files(paths)).resolve()),
    )


def _name_rendezvous(config: BenchConfig) -> str:
    """A path that does not exist yet."""
    return str((config.folder / "logs" / f"rendezvous-{uuid.uuid4().hex}").resolve())


def _choose_label(config: BenchConfig, facts: Facts) -> str:
    names = facts.tensor_columns
    if config.label is not None and config.label not in names:
        raise ValueError(f"--label {config.label} is not a numeric column; there are {', '.join(names)}")
    return config.label or next((name for name in _LABELS if name in names), names[-1])
