"""Options of ``peers``: those of ``throughput`` with other defaults, and three more."""

from __future__ import annotations

import argparse

from bench.choices import choose_names
from bench.options import add_throughput, read_throughput
from bench.peers import PEERS
from bench.rivals.measure import PARTS, measure_rivals

__all__ = ["add_peers"]

_PEERS = ",".join(
    name
    for name, peer in PEERS.items()
    if (peer.rival and name != "ray-shuffle-split") or name in ("scan", "torch-scan") or peer.cached
)


def add_peers(parser: argparse.ArgumentParser) -> None:
    """Options of ``peers``."""
    add_throughput(parser)
    group = parser.add_argument_group("parts")
    group.add_argument(
        "--parts",
        default=",".join(PARTS),
        metavar="A,B",
        help="the table in large and in small batches, and data of lists and of strings (default: %(default)s)",
    )
    group.add_argument(
        "--small-batch-size",
        type=int,
        default=1024,
        help="batch size of all parts but the first (default: %(default)s)",
    )
    group.add_argument(
        "--sample-rows",
        type=int,
        default=131_072,
        help="rows of the sample for row-wise loaders (default: %(default)s)",
    )
    parser.set_defaults(executor="both", peers=_PEERS, peer_epochs=3, run=_run)


def _run(options: argparse.Namespace) -> int:
    if min(options.small_batch_size, options.sample_rows) < 1:
        raise ValueError("--small-batch-size and --sample-rows must be at least 1")
    parts = choose_names("--parts", options.parts, PARTS)
    return measure_rivals(read_throughput(options), parts, options.small_batch_size, options.sample_rows)
