"""The options of the command line, and what they mean."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bench.asked import Asked
from bench.data import KINDS
from bench.peers import PEERS
from bench.sizes import read_size

__all__ = ["add_data", "add_memory", "add_throughput", "read_memory", "read_throughput"]

_DEFAULT_PEERS = "scan,torch-scan,ray-shuffle,ray-materialize"


def add_data(parser: argparse.ArgumentParser) -> None:
    """Options of every subcommand that makes data."""
    group = parser.add_argument_group("data")
    group.add_argument("--kind", choices=KINDS, default="dlrm", help="what to make (default: %(default)s)")
    group.add_argument(
        "--size", default="1.4GB", help="decoded bytes to make, with a unit (default: %(default)s)"
    )
    group.add_argument("--folder", type=Path, default=Path(".bench"), help="where made data is kept")


def add_throughput(parser: argparse.ArgumentParser) -> None:
    """Options of ``throughput``."""
    add_data(parser)
    group = parser.add_argument_group("what is read")
    group.add_argument("--data", metavar="PATH", help="existing Parquet instead: a file, a folder, a glob")
    group.add_argument(
        "--key", default="key", help="column of 0 .. rows-1, for exactly-once (default: %(default)s)"
    )
    group.add_argument("--columns", metavar="A,B", help="only these (default: all)")
    group = parser.add_argument_group("what is run")
    group.add_argument(
        "--executor", default="threads", help="threads, ray, both, or none (default: %(default)s)"
    )
    group.add_argument(
        "--peers",
        default=_DEFAULT_PEERS,
        metavar="A,B",
        help=f"of {', '.join(PEERS)}; or none (default: %(default)s)",
    )
    group.add_argument("--trainers", type=_count, help="default: 1 on threads, 2 on Ray")
    group.add_argument(
        "--epochs", type=_count, default=6, help="the first is shown, the others count (%(default)s)"
    )
    group.add_argument(
        "--peer-epochs", type=_count, default=4, help="those of the rivals (default: %(default)s)"
    )
    group.add_argument(
        "--rounds", type=_count, default=1, help="run all systems in turn this often (%(default)s)"
    )
    group.add_argument("--window", help="bytes (256MiB) or blocks (12) a window (default: the whole dataset)")
    group.add_argument("--block", help="join row groups up to this, with a unit (default: the library's)")
    group.add_argument("--batch-size", type=_count, default=65_536, help="default: %(default)s")
    group.add_argument("--equal", action="store_true", help="give every trainer the same number of rows")
    group.add_argument(
        "--train",
        action="store_true",
        help="train a small model on the batches; with --equal, the trainers of Ray train one together",
    )
    group.add_argument("--label", help="the column that it predicts")
    group.add_argument(
        "--paced",
        action="store_true",
        help="after a third of the epochs, trainers sleep after each batch for as long as one took to come "
        "before, as with a GPU that is as fast as the engine; only the last third counts",
    )
    group.add_argument(
        "--computing",
        action="store_true",
        help="likewise, but trainers compute on one core each, for twice as long as the cores left need for "
        "a batch, and the table tells how much slower than with an idle engine; wants fewer trainers than cores",
    )
    group.add_argument("--seed", type=int, default=7, help="of the shuffle (default: %(default)s)")
    group.add_argument("--memory-limit", help="windrow's, with a unit")
    group.add_argument(
        "--cache", choices=("memory", "disk"), help="where windrow keeps decoded blocks (default: nowhere)"
    )
    group.add_argument("--cache-limit", help="of them, with a unit (default: the library's)")
    group.add_argument("--object-store", help="Ray's, with a unit (default: 30 %% of the memory)")
    group.add_argument("--timeout", type=float, default=1800.0, help="seconds a system may take")
    group = parser.add_argument_group("what is written")
    group.add_argument("--json", type=Path, metavar="PATH", help="everything measured")
    group.add_argument("--plot", type=Path, metavar="PATH", help="a PNG")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def read_throughput(options: argparse.Namespace) -> Asked:
    """Check the options of ``throughput``.

    Raises
    ------
    ValueError
        If one of them is no size, or names no system.
    """
    if options.paced and options.computing:
        raise ValueError("--paced trainers idle and --computing ones do not: choose one")
    window = options.window if options.window not in (None, "all") else None
    if window is not None and not window.isdigit():
        read_size(window, "--window")
    return Asked(
        kind=options.kind,
        size_bytes=read_size(options.size, "--size"),
        data=options.data,
        key=options.key,
        columns=tuple(options.columns.split(",")) if options.columns else None,
        systems=_choose_systems(options.peers, options.executor),
        trainers=options.trainers,
        epochs=options.epochs,
        rival_epochs=options.peer_epochs,
        rounds=options.rounds,
        window=window,
        block=options.block,
        batch_size=options.batch_size,
        equal=options.equal,
        train=options.train,
        label=options.label,
        seed=options.seed,
        memory_limit=options.memory_limit,
        cache=options.cache,
        cache_limit=options.cache_limit,
        paced=options.paced,
        computing=options.computing,
        object_store_bytes=read_size(options.object_store, "--object-store")
        if options.object_store
        else None,
        timeout_seconds=options.timeout,
        folder=options.folder,
        json=options.json,
        plot=options.plot,
    )


def _choose_systems(peers: str, executor: str) -> tuple[str, ...]:
    """The limits first, then windrow, then the rivals, as they are listed."""
    executors = {"both": ["threads", "ray"], "none": []}.get(executor, executor.split(","))
    wanted = {f"windrow-{name}" for name in executors} | (set() if peers == "none" else set(peers.split(",")))
    unknown = sorted(wanted - set(PEERS))
    if unknown:
        raise ValueError(f"no system is called {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if not wanted:
        raise ValueError("nothing to measure: --peers none and --executor none")
    return tuple(name for name in PEERS if name in wanted)


def add_memory(parser: argparse.ArgumentParser) -> None:
    """Options of ``memory``."""
    add_data(parser)
    group = parser.add_argument_group("what is run")
    group.add_argument("--object-store", default="140MB", help="Ray's (default: %(default)s)")
    group.add_argument("--memory-limit", default="165MB", help="of the threads (default: %(default)s)")
    group.add_argument("--window", default="45MB", help="bytes or blocks a window (default: %(default)s)")
    group.add_argument("--block", default="20MB", help="join row groups up to this (default: %(default)s)")
    group.add_argument("--trainers", type=_count, help="default: 1 on threads, 2 on Ray")
    group.add_argument("--batch-size", type=_count, default=8192, help="default: %(default)s")
    group.add_argument("--epochs", type=_count, default=3, help="default: %(default)s")
    group.add_argument("--json", type=Path, metavar="PATH", help="everything measured")


def read_memory(options: argparse.Namespace) -> Asked:
    """Check the options of ``memory``; all others are those of ``throughput`` where nothing is given."""
    parser = argparse.ArgumentParser()
    add_throughput(parser)
    given = vars(options) | {"executor": "both", "peers": "none", "timeout": 120.0}
    merged = argparse.Namespace(**{**vars(parser.parse_args([])), **given})
    return replace(read_throughput(merged), watch_store=True)
