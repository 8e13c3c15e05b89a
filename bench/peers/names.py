"""The systems by name, without importing their libraries."""

from __future__ import annotations

from dataclasses import dataclass

BUFFER_SHARE = 12
"""The shuffle buffer of a rival holds the total number of rows divided by this."""


_QUEUE = f"row groups, queue of 1/{BUFFER_SHARE} of the rows"
_BUFFER = f"files, buffer of 1/{BUFFER_SHARE} of the rows"


@dataclass(frozen=True)
class PeerName:
    """Properties of a system.

    ``shuffle`` describes the shuffle that the system claims; the report shows the measured order. A system
    that ``trains`` does so even if the others only take batches; one that ``streams`` must not spill.
    A ``rival`` is a system other than windrow. One that is ``by_row`` processes rows one at a time, so it is
    measured on a sample and with small batches; systems that are ``small_too`` are measured with
    small batches as well. Systems that are ``variable_too`` also deliver columns of variable width: lists and
    strings. One that is ``cached`` always caches decoded blocks in memory. ``environment`` names
    the file in ``bench/peers/requirements`` with the versions that a rival needs if they differ from ours;
    ``library`` is the library it belongs to.
    """

    adapter: str
    title: str
    shuffle: str
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


def _name_rival(
    adapter: str, title: str, shuffle: str, environment: str | None, library: str = "", **traits: bool
) -> PeerName:
    return PeerName(
        f"bench.peers.{adapter}",
        title,
        shuffle,
        rival=True,
        library=library or (environment or "").removeprefix("hf-"),
        environment=environment,
        **traits,
    )


_LIMITS = {
    "scan": PeerName(
        "bench.peers.limits:Scan", "limit: raw Parquet scan", "none", delivers=False, variable_too=True
    ),
    "torch-scan": PeerName("bench.peers.limits:TorchScan", "limit: scan to torch", "none", small_too=True),
    "fresh-memory": PeerName(
        "bench.peers.limits:FreshMemory", "limit: memory of two windows", "none", delivers=False
    ),
    "ray-start": PeerName(
        "bench.peers.limits:RayStart", "limit: Ray's processes and store", "none", delivers=False
    ),
}
_OURS = {
    "windrow-threads": PeerName(
        "bench.peers.windrow_threads:WindrowThreads",
        "windrow threads",
        "full",
        small_too=True,
        variable_too=True,
    ),
    "windrow-ray": PeerName(
        "bench.peers.windrow_ray:WindrowRay",
        "windrow ray",
        "full",
        streams=True,
        small_too=True,
        variable_too=True,
    ),
    "windrow-torchrun": PeerName(
        "bench.peers.windrow_torchrun:WindrowTorchrun", "windrow torchrun", "full", streams=True
    ),
    "windrow-threads-cached": PeerName(
        "bench.peers.windrow_threads:WindrowThreads", "windrow threads", "full", small_too=True, cached=True
    ),
    "windrow-ray-cached": PeerName(
        "bench.peers.windrow_ray:WindrowRay", "windrow ray", "full", small_too=True, cached=True
    ),
    "windrow-ray-training": PeerName(
        "bench.peers.windrow_ray:WindrowRay", "windrow ray, training", "full", trains=True, streams=True
    ),
}
_RAY = {
    "ray-shuffle": _name_rival(
        "ray_data:RayShuffle", "Ray Data random_shuffle", "full", None, "ray", variable_too=True
    ),
    "ray-materialize": _name_rival(
        "ray_data:RayMaterialize", "Ray Data materialize, shuffle", "full", None, "ray", small_too=True
    ),
}
_BY_BATCH = {
    "daft": _name_rival("daft:Daft", "Daft shuffle", "full", "daft"),
    "petastorm": _name_rival("petastorm:Petastorm", "Petastorm BatchedDataLoader", _QUEUE, "petastorm"),
    "petastorm-memory": _name_rival(
        "petastorm:PetastormMemory", "Petastorm InMemBatchedDataLoader", "full", "petastorm"
    ),
    "hf-streaming-batches": _name_rival(
        "hf_streaming:HFStreamingBatches",
        "HF datasets streaming, Arrow batches",
        _BUFFER,
        "hf-datasets",
        variable_too=True,
    ),
    "lance": _name_rival(
        "lance:LanceTake", "Lance, take", "full", "lance", variable_too=True, library="pylance"
    ),
    "lance-batches": _name_rival(
        "lance:LanceBatches",
        "Lance, torch dataset",
        "batches, whose rows stay together",
        "lance",
        variable_too=True,
        library="pylance",
    ),
}
_BY_ROW = {
    "mosaicml-streaming": _name_rival(
        "mosaicml_streaming:MosaicMLStreaming",
        "MosaicML Streaming py1e",
        f"shards, spread over 1/{BUFFER_SHARE} of the rows",
        "mosaicml-streaming",
        by_row=True,
        variable_too=True,
    ),
    "litdata": _name_rival(
        "litdata:LitData", "LitData", "chunks, 256 rows in each", "litdata", by_row=True, variable_too=True
    ),
    "hf-streaming": _name_rival(
        "hf_streaming:HFStreaming",
        "HF datasets streaming",
        _BUFFER,
        "hf-datasets",
        by_row=True,
        variable_too=True,
    ),
    "grain": _name_rival("grain:Grain", "Grain", "full", "grain", by_row=True),
    "webdataset": _name_rival(
        "webdataset:WebDataset",
        "WebDataset",
        f"shards, buffer of 1/{BUFFER_SHARE} of the rows",
        "webdataset",
        by_row=True,
    ),
}
PEERS = {**_LIMITS, **_OURS, **_RAY, **_BY_BATCH, **_BY_ROW}
