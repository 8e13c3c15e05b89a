"""Options of ``throughput``, the configuration that they give, and the data and requests that follow from it."""

from __future__ import annotations

import argparse
import uuid
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from bench.data.files import GROUP_ROWS, make_data
from bench.peers.environments import find_python, name_files
from bench.peers.names import PEERS
from bench.system.console import add_data, read_count, read_size
from bench.system.machine import count_cores, read_memory_bytes
from bench.training.facts import Facts
from bench.training.request import Request, Settings

_DEFAULT_PEERS = "scan,torch-scan,ray-shuffle,ray-materialize"
_STORE_SHARE = 0.3
_LABEL = "labels"


def add_throughput(parser: argparse.ArgumentParser) -> None:
    add_data(parser, "1.4GB")
    add = parser.add_argument
    add("--executor", default="threads", help="threads, ray, torchrun, both (threads,ray), or none")
    systems = f"systems to compare with: {', '.join(PEERS)}; or none"
    add("--peers", default=_DEFAULT_PEERS, metavar="A,B", help=systems)
    add("--trainers", type=read_count, help="trainers (default: 1 on threads, 2 on Ray)")
    add("--epochs", type=read_count, default=BenchConfig.epochs, help="number of epochs")
    add("--peer-epochs", dest="rival_epochs", type=read_count, default=4, help="number of epochs of rivals")
    add("--rounds", type=read_count, default=1, help="times that all systems run, in turns")
    add(
        "--window", type=_read_window, help="window size in bytes (256MiB) or blocks (12) (default: all rows)"
    )
    add("--batch-size", type=read_count, default=BenchConfig.batch_size, help="rows of a batch")
    add("--cache", choices=("memory", "disk"), help="where windrow caches decoded blocks (default: no cache)")
    paced = "after a third of the epochs, trainers sleep after each batch as long as one took; the last third counts"
    add("--paced", action="store_true", help=paced)


def _read_window(text: str) -> str:
    """A number of blocks or of bytes, as windrow takes it."""
    if not text.isdigit():
        read_size(text)
    return text


def read_throughput(options: argparse.Namespace) -> BenchConfig:
    return replace(read_config(options), systems=_choose_systems(options.peers, options.executor))


def read_config(options: argparse.Namespace) -> BenchConfig:
    """The configuration of options that are named like its fields."""
    given = {name: value for name, value in vars(options).items() if name in BenchConfig.__dataclass_fields__}
    return BenchConfig(**given)


def _choose_systems(peers: str, executor: str) -> tuple[str, ...]:
    """Names of the chosen systems in the order of ``PEERS``: limits, windrow, rivals."""
    executors = {"both": ["threads", "ray"], "none": []}.get(executor, executor.split(","))
    wanted = {f"windrow-{name}" for name in executors} | (set() if peers == "none" else set(peers.split(",")))
    unknown = sorted(wanted - set(PEERS))
    if unknown:
        raise ValueError(f"unknown system {', '.join(unknown)}; known are {', '.join(PEERS)}")
    if not wanted:
        raise ValueError("nothing to measure: --peers none and --executor none")
    return tuple(name for name in PEERS if name in wanted)


@dataclass(frozen=True, kw_only=True)
class BenchConfig(Settings):
    """A measurement of several systems on the same files; no ``trainers``: one on threads and two on Ray."""

    size_bytes: int = 1_400_000_000
    group_rows: int = GROUP_ROWS
    systems: tuple[str, ...] = ()
    trainers: int | None = None
    epochs: int = 6
    rival_epochs: int = 4
    rounds: int = 1
    object_store_bytes: int | None = None
    timeout_seconds: float = 1800.0
    folder: Path = Path(".bench")


def find_data(config: BenchConfig) -> list[str]:
    return make_data(config.size_bytes, config.folder / "data", group_rows=config.group_rows)


def make_request(config: BenchConfig, system: str, facts: Facts) -> Request:
    several = system.startswith("windrow-ray") or system == "windrow-torchrun"
    trainers = (config.trainers or (2 if several else 1)) if several or system.startswith("windrow") else 1
    peer = PEERS[system]
    logs = (config.folder / "logs").resolve()
    shared: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(Settings)}
    return Request(
        **{**shared, **vars(facts), **({"cache": "memory"} if peer.cached else {})},
        system=system,
        epochs=config.rival_epochs if peer.rival else config.epochs,
        trainers=trainers,
        label=_LABEL if peer.trains else None,
        rendezvous=f"{logs}/rendezvous-{uuid.uuid4().hex}" if trainers > 1 and several else None,
        object_store_bytes=config.object_store_bytes or int(read_memory_bytes() * _STORE_SHARE),
        cores=count_cores(),
        python=str(find_python(config.folder, peer.environment)) if peer.environment else None,
        converted=str((config.folder / "converted" / name_files(facts.paths)).resolve()),
    )
