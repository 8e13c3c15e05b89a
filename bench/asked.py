"""What was asked on the command line, checked."""

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

__all__ = ["Asked", "find_data", "make_request"]

_STORE_SHARE = 0.3
_LABELS = ("labels", "total_amount")


@dataclass(frozen=True)
class Asked:
    """A measurement of several systems on the same files.

    ``systems`` are names of ``bench.peers.PEERS`` in the order they run; ``trainers``
    is None for one on threads and two on Ray. ``rival_epochs`` are those of the rivals.
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


def find_data(asked: Asked, line: ProgressLine) -> list[str]:
    """The Parquet files that are given, or made and kept.

    Raises
    ------
    ValueError
        If no file is there.
    """
    if asked.data is not None:
        place = Path(asked.data)
        found = place.glob("**/*.parquet") if place.is_dir() else map(Path, glob.glob(asked.data))
        paths = sorted(str(path.resolve()) for path in found)
        if not paths:
            raise ValueError(f"{asked.data} names no Parquet file, folder of such, or glob")
        return paths
    line.start(f"making {asked.kind} data of {asked.size_bytes / 1e6:,.0f} MB")

    def show(done: int, total: int) -> None:
        line.update(done / total, f"{done} of {total} files")

    made = make_data(
        asked.kind,
        asked.size_bytes,
        seed=0,
        folder=asked.folder / "data",
        workers=count_cores(),
        progress=show,
    )
    line.finish(f"{len(made)} files in {made[0].parent}")
    return [str(path.resolve()) for path in made]


def make_request(asked: Asked, system: str, paths: Sequence[str], facts: Facts) -> Request:
    """What one system is asked to do, with what the files hold."""
    several = system.startswith("windrow-ray") or system in ("ray-shuffle-split", "ray-start")
    trainers = (asked.trainers or (2 if several else 1)) if several or system.startswith("windrow") else 1
    peer = PEERS[system]
    if asked.computing and trainers >= count_cores():
        raise ValueError(
            f"--computing takes a core for each of {trainers} trainers, and there are {count_cores()}: "
            "give fewer --trainers, so that cores are left to the engine"
        )
    return Request(
        system=system,
        paths=tuple(paths),
        columns=tuple(facts.schema.names),
        tensor_columns=facts.tensor_columns,
        rows=facts.rows,
        key=facts.key,
        sum_columns=tuple(facts.sums),
        batch_size=asked.batch_size,
        epochs=asked.rival_epochs if peer.rival else asked.epochs,
        trainers=trainers,
        equal=asked.equal,
        window=asked.window,
        seed=asked.seed,
        categories=facts.categories,
        label=_choose_label(asked, facts) if asked.train or peer.trains else None,
        rendezvous=_name_rendezvous(asked) if trainers > 1 and several else None,
        memory_limit=asked.memory_limit,
        cache="memory" if peer.cached else asked.cache,
        cache_limit=asked.cache_limit,
        paced=asked.paced,
        computing=asked.computing,
        object_store_bytes=asked.object_store_bytes or int(read_memory_bytes() * _STORE_SHARE),
        cores=count_cores(),
        block=asked.block,
        watch_store=asked.watch_store,
        row_groups=facts.row_groups,
        python=str(find_python(asked.folder, peer.environment)) if peer.environment else None,
        converted=str((asked.folder / "converted" / name_files(paths)).resolve()),
    )


def _name_rendezvous(asked: Asked) -> str:
    """A file that is not there yet."""
    return str((asked.folder / "logs" / f"rendezvous-{uuid.uuid4().hex}").resolve())


def _choose_label(asked: Asked, facts: Facts) -> str:
    names = facts.tensor_columns
    if asked.label is not None and asked.label not in names:
        raise ValueError(f"--label {asked.label} is no numeric column; there are {', '.join(names)}")
    return asked.label or next((name for name in _LABELS if name in names), names[-1])
