"""The systems by name, without importing their libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BUFFER_SHARE = 12
"""The shuffle buffer of a rival holds the total number of rows divided by this."""


@dataclass(frozen=True)
class PeerName:
    """Properties of a system.

    A system that ``trains`` does so even if the others only take batches; one
    that ``streams`` must not spill. Those that are ``by_row`` or ``small_too`` are measured with small batches, the
    former on a sample. Those that are ``variable_too`` also deliver lists and strings. ``environment`` is the file in
    ``bench/peers/requirements`` with the versions that a rival needs if they differ from ours.
    """

    adapter: str
    title: str
    delivers: bool = True
    trains: bool = False
    streams: bool = False
    rival: bool = False
    by_row: bool = False
    small_too: bool = False
    variable_too: bool = False
    cached: bool = False
    library: str | None = None
    environment: str | None = None


def _rival(adapter: str, title: str, library: str, **traits: Any) -> PeerName:
    """A rival in an environment that is named like its library."""
    environment = {"ray": None, "pylance": "lance", "datasets": "hf-datasets"}.get(library, library)
    name = f"bench.peers.{adapter}"
    return PeerName(name, title, rival=True, library=library, environment=environment, **traits)


def _windrow(adapter: str, title: str, **traits: Any) -> PeerName:
    return PeerName(f"bench.peers.windrow_{adapter}", f"windrow {title}", **traits)


def _limit(adapter: str, title: str, **traits: Any) -> PeerName:
    return PeerName(f"bench.peers.limits:{adapter}", f"limit: {title}", **traits)


_THREADS, _RAY = "threads:WindrowThreads", "ray:WindrowRay"
PEERS = {
    "scan": _limit("Scan", "raw Parquet scan", delivers=False, variable_too=True),
    "torch-scan": _limit("TorchScan", "scan to torch", small_too=True),
    "windrow-threads": _windrow(_THREADS, "threads", small_too=True, variable_too=True),
    "windrow-ray": _windrow(_RAY, "ray", streams=True, small_too=True, variable_too=True),
    "windrow-torchrun": _windrow("torchrun:WindrowTorchrun", "torchrun", streams=True),
    "windrow-threads-cached": _windrow(_THREADS, "threads", small_too=True, cached=True),
    "windrow-ray-cached": _windrow(_RAY, "ray", small_too=True, cached=True),
    "windrow-ray-training": _windrow(_RAY, "ray, training", trains=True, streams=True),
    "ray-shuffle": _rival("ray_data:RayShuffle", "Ray Data random_shuffle", "ray", variable_too=True),
    "ray-materialize": _rival(
        "ray_data:RayMaterialize", "Ray Data materialize, shuffle", "ray", small_too=True
    ),
    "daft": _rival("daft:Daft", "Daft shuffle", "daft"),
    "petastorm": _rival("petastorm:Petastorm", "Petastorm BatchedDataLoader", "petastorm"),
    "petastorm-memory": _rival("petastorm:PetastormMemory", "Petastorm InMemBatchedDataLoader", "petastorm"),
    "hf-streaming-batches": _rival(
        "hf_streaming:HFStreamingBatches",
        "HF datasets streaming, Arrow batches",
        "datasets",
        variable_too=True,
    ),
    "lance": _rival("lance:LanceTake", "Lance, take", "pylance", variable_too=True),
    "lance-batches": _rival("lance:LanceBatches", "Lance, torch dataset", "pylance", variable_too=True),
    "mosaicml-streaming": _rival(
        "mosaicml_streaming:MosaicMLStreaming",
        "MosaicML Streaming py1e",
        "mosaicml-streaming",
        by_row=True,
        variable_too=True,
    ),
    "litdata": _rival("litdata:LitData", "LitData", "litdata", by_row=True, variable_too=True),
    "hf-streaming": _rival(
        "hf_streaming:HFStreaming", "HF datasets streaming", "datasets", by_row=True, variable_too=True
    ),
    "grain": _rival("grain:Grain", "Grain", "grain", by_row=True),
    "webdataset": _rival("webdataset:WebDataset", "WebDataset", "webdataset", by_row=True),
}
