"""Checks that all ranks of a job build the same run, and tells every rank the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from windrow.core import errors
from windrow.core.errors import PlanError, StallError, WindrowError
from windrow.io.catalog.manifest import digest_briefly
from windrow.pipeline.checkpoint.state import describe_differences, describe_stream, parse_state
from windrow.pipeline.executors.base import Waiting
from windrow.pipeline.launch.rendezvous import Rendezvous
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.program import Program
from windrow.shuffle.order.batching import Batching

_MAX_NAMED = 8
_READ_SECONDS = 3.0


@dataclass(frozen=True)
class Member:
    """A rank's place in a run: its shard, which of the shard's replicas it is, how it is named, and its address."""

    shard: int
    replica: int
    name: str
    ip: str


@dataclass(frozen=True)
class Agreement:
    """A run that all ranks have agreed on: its name, and by shard its nodes and the names of its replicas."""

    name: str
    nodes: Any
    replicas: list[list[str]]


def agree_on_run(
    rendezvous: Rendezvous,
    number: int,
    program: Program,
    member: Member,
    begin: Cursor,
    start: Callable[[list[list[str]]], tuple[str, Any]],
    waiting: Waiting,
) -> Agreement:
    """Wait until every rank has called `shard`, check that all build the same run, and start it once.

    ``number`` counts the calls of each rank, and ``begin`` is where this one starts in the stream. Rank 0 calls
    ``start`` with the IP addresses of each shard's ranks; what it returns, the run's name and nodes, is returned on all
    ranks. A difference, and an error of rank 0, is raised on every rank.
    """
    size, me = rendezvous.world_size, rendezvous.rank
    keys = [f"run/{number}/rank/{rank}" for rank in range(size)]
    started = f"run/{number}/started"
    mine = {
        "stream": describe_stream(program.job).to_dict(),
        "facts": _describe(program, begin),
        "member": asdict(member),
    }
    rendezvous.publish(keys[me], mine)

    def describe() -> str:
        absent = [key.rpartition("/")[2] for key in rendezvous.missing(keys)]
        if not absent:
            return f"rank {me} waits for rank 0 to start the run"
        shown = ", ".join(absent[:_MAX_NAMED]) + (", ..." if len(absent) > _MAX_NAMED else "")
        return (
            f"rank {me} waits in shard() for {'ranks' if len(absent) > 1 else 'rank'} {shown} of {size} to make its "
            f"call number {number + 1} of shard(): all ranks share one run, so all of them call shard() "
            "equally often (a rank that reads alone calls pipe.iterator() instead)"
        )

    if me == 0:
        with publishing_errors(rendezvous, started):
            rendezvous.wait(keys, waiting, describe)
            others = [rendezvous.read(key) for key in keys]
            _check_same(others)
            found = _place_members([Member(**other["member"]) for other in others], program)
            ips = [list(dict.fromkeys(one.ip for one in of_shard)) for of_shard in found]
            name, nodes = start(ips)
            names = [[one.name for one in of_shard] for of_shard in found]
        rendezvous.publish(started, {"name": name, "nodes": nodes, "replicas": names})
        return Agreement(name, nodes, names)
    # rank 0 tells what is wrong, and before this rank gives up
    patient = Waiting(waiting.warn_seconds, waiting.fail_seconds * 1.25)
    rendezvous.wait([started], patient, describe)
    told = read_published(rendezvous, started)
    return Agreement(str(told["name"]), tuple(map(tuple, told["nodes"])), told["replicas"])


def compare_first_read(
    rendezvous: Rendezvous, program: Program, begin: Cursor, batching: Batching, shares_run: bool
) -> None:
    """Raise a `PlanError` if this rank begins to read elsewhere, or other batches, than the first rank that began.

    ``shares_run``: a coordinator compares the batches. No rank waits for another one.
    """
    # what each rank can choose for itself where it reads for itself, such as columns, is left out
    described = _describe(program, begin)
    facts = {name: described[name] for name in ("state_dict", "shards", "equal")}
    if not shares_run:
        facts["batches"] = str(batching)
    mine = {"rank": rendezvous.rank, "stream": describe_stream(program.job).to_dict(), "facts": facts}
    try:
        first = rendezvous.publish_first("first read", mine)
    except StallError:
        # the store ends with its process, and is not needed for anything else
        return
    table = _describe_difference(first, mine, (f"rank {first['rank']}", f"rank {mine['rank']}"))
    if table:
        raise PlanError(
            f"the ranks of this job do not read the same, so rows would come twice or never:{table}\n"
            "Give every rank the same seed, files and batch size, and load the same state on all of them"
        )


@contextmanager
def publishing_errors(rendezvous: Rendezvous, key: str) -> Iterator[None]:
    """Publish an error under a key, so that it is raised on every rank."""
    try:
        yield
    except BaseException as error:
        name = type(error).__name__ if isinstance(error, WindrowError) else ""
        text = str(error) if name else f"{type(error).__name__}: {error}"
        rendezvous.publish(key, {"error": text, "kind": name, "rank": rendezvous.rank})
        if rendezvous.rank == 0 and isinstance(error, Exception):
            # rank 0 may serve the store, which ends with it: let the others read the error first
            readers = [_reader_key(key, rank) for rank in range(1, rendezvous.world_size)]
            with suppress(StallError):
                rendezvous.wait(readers, Waiting(_READ_SECONDS + 1, _READ_SECONDS), lambda: "")
        raise


def read_published(rendezvous: Rendezvous, key: str) -> dict[str, Any]:
    """A published value; if it is an error of another rank, it is raised here too."""
    value = rendezvous.read(key)
    if "error" not in value:
        return value
    rendezvous.publish(_reader_key(key, rendezvous.rank), {})
    kind = getattr(errors, str(value["kind"]) or "StallError", StallError)
    raise kind(f"{value['error']} (found by rank {value['rank']})")


def _reader_key(key: str, rank: int) -> str:
    return f"{key}/read by/{rank}"


def _describe(program: Program, begin: Cursor) -> dict[str, str]:
    """What ranks have to agree on beyond the stream, as text."""
    job = program.job
    packing = [] if job.packing is None else [str(job.packing)]
    sort = [] if job.sort is None else [str(job.sort)]
    names = [
        *(stage.name for stage in job.before),
        "shuffle",
        *sort,
        *packing,
        *(stage.name for stage in job.after),
    ]
    options = job.options
    columns = job.source.schema.names
    shown = ", ".join(columns[:_MAX_NAMED])
    if len(columns) > _MAX_NAMED:
        shown += f" and {len(columns) - _MAX_NAMED:,} more ({digest_briefly(repr(columns).encode())})"
    return {
        "state_dict": f"of epoch {begin.epoch}, row {begin.row:,}" if begin.epoch or begin.row else "None",
        "columns": shown,
        "shards": str(program.shards),
        "replicas": str(program.replicas),
        "equal": repr(program.equal),
        "epochs": str(job.epochs or "forever"),
        "transforms": ", ".join(names),
        "length_column": repr(None if job.mixture is None else job.mixture.length_column),
        "unit": repr(None if job.mixture is None else job.mixture.unit),
        "options": f"on_error={options.on_error!r}, cache={options.cache!r}, row_id_column={options.row_id_column!r}",
    }


def _place_members(members: list[Member], program: Program) -> list[list[Member]]:
    """The members of each shard, by replica; raises a PlanError if two are the same, or one is missing."""
    ranks: dict[tuple[int, int], int] = {}
    for rank, member in enumerate(members):
        first = ranks.setdefault((member.shard, member.replica), rank)
        if first != rank:
            raise PlanError(
                f"ranks {first} and {rank} both read shard {member.shard} as replica {member.name}: with "
                f"{program.shards} shards and {program.replicas} replicas of each, every rank has a place of its own"
            )
    if len(ranks) != program.shards * program.replicas:
        raise PlanError(
            f"{len(members)} ranks share a run of {program.shards} shards with {program.replicas} replicas of each, "
            f"which needs {program.shards * program.replicas}: let every rank call shard(), or give the size of the "
            "whole job to attach()"
        )
    return [
        [members[ranks[shard, replica]] for replica in range(program.replicas)]
        for shard in range(program.shards)
    ]


def _check_same(ranks: list[dict[str, Any]]) -> None:
    first = ranks[0]
    for rank, other in enumerate(ranks):
        table = _describe_difference(first, other, ("rank 0", f"rank {rank}"))
        if table:
            raise PlanError(
                f"the ranks of this job do not build the same pipeline, and cannot share its run:{table}\n"
                "Build it from the same arguments on every rank, with the same seed, files and state"
            )


def _describe_difference(first: dict[str, Any], other: dict[str, Any], labels: tuple[str, str]) -> str:
    """A line for each difference of two ranks; empty if there is none."""
    table = describe_differences(parse_state(first["stream"]), parse_state(other["stream"]), labels)
    return table or "".join(
        f"\n  {name}: {labels[0]} {fact}, {labels[1]} {other['facts'][name]}"
        for name, fact in first["facts"].items()
        if other["facts"][name] != fact
    )
