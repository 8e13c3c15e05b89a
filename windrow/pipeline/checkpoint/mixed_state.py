"""What a state says of a mixture: how far each source has come, and since when it has its share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from windrow.core.errors import PlanError, StateError
from windrow.core.integers import as_integer
from windrow.core.user_warnings import warn_user
from windrow.pipeline.plan.cursor import Cursor, JoinedPoint, MixturePoint
from windrow.pipeline.plan.document_order import document_length
from windrow.pipeline.plan.leg import Leg
from windrow.pipeline.plan.leg_order import LegOrder
from windrow.pipeline.plan.mixture import Mixture
from windrow.pipeline.plan.plan_leg import as_mixture_leg, leg_at, plan_leg
from windrow.pipeline.plan.shares import make_shares
from windrow.shuffle.order.length_groups import LengthGroups

_DIGEST_DIGITS = 16
# no number of a state is as large
_MAX_NUMBER = 2**62


@dataclass(frozen=True)
class MixedSourceState:
    """One source: a digest of its data and order, the rows it has delivered, and its weight among the others.

    ``begun`` are its rows when the shares last changed; -1: it had no more then. Where documents are joined, all of
    these count documents, and with shares of tokens, ``tokens`` are those of the documents since then.
    """

    digest: str
    rows: int
    weight: int
    begun: int
    tokens: int | None = None


@dataclass(frozen=True)
class JoinedState:
    """Where sequences join documents: how many documents have begun, and of the last one, its source and what is left.

    The source is empty if nothing of it is left.
    """

    documents: int
    source: str = ""
    left: int = 0


@dataclass(frozen=True)
class MixedState:
    """The sources of a mixture at a row: ``since`` rows after the shares last changed, and after ``steps`` steps.

    ``schedule`` is a digest of the shares that the pipeline was built with; ``is_set``: others were set since.
    """

    since: int
    steps: int
    schedule: str
    is_set: bool
    sources: tuple[tuple[str, MixedSourceState], ...]
    # in the middle of a group by length, which begins at the row: a digest of where the rows of sources come in it
    group: str = ""
    joined: JoinedState | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        joined = self.joined
        return {
            **({"group": self.group} if self.group else {}),
            **({} if joined is None else {"joined": [joined.documents, joined.source, joined.left]}),
            "since": self.since,
            "steps": self.steps,
            "schedule": self.schedule,
            "is_set": self.is_set,
            # a list, since torch.distributed.checkpoint takes the keys of dicts for parts that have to be there
            "sources": [
                [name, each.digest, each.rows, each.weight, each.begun]
                + ([] if each.tokens is None else [each.tokens])
                for name, each in self.sources
            ],
        }


def describe_mixture(
    mixture: Mixture, leg: Leg | None = None, row: int = 0, group: LengthGroups | None = None
) -> MixedState:
    """The state of a mixture at a row of one of its legs; at its start without one. A ``group`` begins there."""
    at = leg or plan_leg(mixture, mixture.start, 0, 1)
    point, counts = at.point_at(row), at.counts_at(row).tolist()
    weights = at.weights_at(row).tolist()
    joined = point.joined
    tokens = joined.tokens if joined is not None and joined.tokens else [None] * len(counts)
    return MixedState(
        since=at.shared_rows(row) - point.row,
        steps=point.steps,
        schedule=digest_schedule(mixture),
        is_set=point.shares is not None,
        sources=tuple(
            (source.name, MixedSourceState(source.digest[:_DIGEST_DIGITS], *of_source))
            for source, *of_source in zip(
                mixture.sources, counts, weights, at.begun_at(row), tokens, strict=True
            )
        ),
        group="" if group is None else _digest_group(mixture, point, group),
        joined=None if joined is None else _describe_joined(mixture, joined),
    )


def _describe_joined(mixture: Mixture, joined: JoinedPoint) -> JoinedState:
    return JoinedState(joined.documents, mixture.names[joined.source] if joined.left else "", joined.left)


def _digest_group(mixture: Mixture, point: MixturePoint, group: LengthGroups) -> str:
    """A digest of where the rows of each source come in a group; empty if the mixture ends within it."""
    first, size = group.first_row, group.step_rows
    leg = as_mixture_leg(plan_leg(mixture, point, first, size, LegOrder(size, first % size, group)))
    if leg.stop < group.stop_row:
        return ""
    parts = [
        (
            max(each.start, first),
            min(each.stop, group.stop_row),
            each.sequence.weights.tolist(),
            each.counts_at(max(each.start, first)).tolist(),
        )
        for each in leg.stretches
        if each.start < group.stop_row and each.stop > first
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:_DIGEST_DIGITS]


def digest_schedule(mixture: Mixture) -> str:
    """A digest of the shares that a mixture was built with, and of what ends a source."""
    text = f"{mixture.shares.to_json()} {mixture.when_exhausted}"
    if mixture.joined is not None and mixture.unit == "tokens":
        text += " by tokens"
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]


def parse_mixed(value: Any) -> MixedState | None:
    """The state that `MixedState.to_dict` returned; None if it is anything else."""
    if not isinstance(value, Mapping) or not isinstance(value.get("sources"), (list, tuple)):
        return None
    since, steps = as_integer(value.get("since")), as_integer(value.get("steps"))
    schedule, is_set, sources = value.get("schedule"), value.get("is_set"), []
    for entry in value["sources"]:
        if not isinstance(entry, (list, tuple)) or len(entry) not in (5, 6):
            return None
        name, digest, (rows, weight, begun, *tokens) = entry[0], entry[1], map(as_integer, entry[2:])
        if not isinstance(name, str) or not isinstance(digest, str):
            return None
        if rows is None or weight is None or begun is None or rows < 0 or weight < 0 or begun < -1:
            return None
        if any(each is None or each < 0 for each in tokens):
            return None
        if max(rows, weight, begun, *filter(None, tokens)) >= _MAX_NUMBER:
            return None
        sources.append((name, MixedSourceState(digest, rows, weight, begun, *tokens)))
    if not any(source.weight for _, source in sources):
        return None
    group, joined = value.get("group", ""), None
    if "joined" in value:
        joined = _parse_joined(value["joined"])
        if joined is None:
            return None
    if since is None or steps is None or since < 0 or steps < 0:
        return None
    if not isinstance(schedule, str) or not isinstance(group, str):
        return None
    return MixedState(
        since, steps, schedule, bool(as_integer(is_set) or is_set is True), tuple(sources), group, joined
    )


def _parse_joined(value: Any) -> JoinedState | None:
    if not isinstance(value, (list, tuple)) or len(value) != 3 or not isinstance(value[1], str):
        return None
    documents, left = as_integer(value[0]), as_integer(value[2])
    if documents is None or left is None or min(documents, left) < 0 or max(documents, left) >= _MAX_NUMBER:
        return None
    if (left > 0) != bool(value[1]):
        return None
    return JoinedState(documents, value[1], left)


def find_changed(then: MixedState, now: MixedState) -> Iterator[tuple[str, str, str]]:
    """The sources of both states whose data or order differ: name, and both digests."""
    before = dict(then.sources)
    for name, source in now.sources:
        if name in before and before[name].digest != source.digest:
            yield (
                f"source {name!r}: data, windows, filter or seed",
                before[name].digest[:8],
                source.digest[:8],
            )


def warn_about_renamed(then: MixedState, now: MixedState) -> None:
    """Warn of new sources with the data and order of one that was left out, since they start at their first row."""
    before, names = dict(then.sources), [name for name, _ in now.sources]
    left_out = {each.digest: name for name, each in before.items() if name not in names and each.rows}
    for name, source in now.sources:
        if name not in before and source.digest in left_out:
            old = left_out[source.digest]
            warn_user(
                f"the source {name!r} starts at its first row: the state has its data and order under the name "
                f"{old!r}, of which {before[old].rows:,} rows were delivered. Use that name to go on behind them"
            )


def resume_mixture(mixture: Mixture, state: MixedState, cursor: Cursor) -> Cursor:
    """The cursor that goes on from a state in a mixture, whose sources and shares may be others now.

    Sources that stay go on where they were, new ones begin. If all have the shares that they had, the order of sources
    goes on too; else shares count from here on.
    """
    known = dict(state.sources)
    row, names = mixture.known_row(cursor), mixture.names
    counts = tuple(known[name].rows if name in known else 0 for name in names)
    weights = tuple(known[name].weight if name in known else 0 for name in names)
    is_same = state.schedule == digest_schedule(mixture) and names == [name for name, _ in state.sources]
    shares = weights if state.is_set and is_same else None
    joined = _resume_joined(mixture, state, counts)
    shared_rows = row if joined is None else joined.documents
    at, goes_on = MixturePoint(counts, shared_rows, shares, state.steps, row, joined), False
    if names == list(known):
        begun = [source.begun for source in known.values()]
        before = tuple(
            rows if begun_at < 0 else begun_at for rows, begun_at in zip(counts, begun, strict=True)
        )
        same = replace(at, counts=before, row=shared_rows - state.since)
        if joined is not None and joined.tokens:
            tokens = [source.tokens or 0 for source in known.values()]
            same = replace(same, joined=replace(joined, tokens=tuple(tokens)))
        leg = plan_leg(mixture, same, row, 1)
        goes_on = (
            leg.goes_on
            and leg.point_at(row).row == same.row
            and leg.weights_at(row).tolist() == list(weights)
            and leg.counts_at(row).tolist() == list(counts)
            and leg.begun_at(row) == begun
            and _shares_tokens(state) == (joined is not None and bool(joined.tokens))
        )
        at = same if goes_on else at
    groups = cursor.groups
    if groups is not None:
        is_same = is_same and goes_on and state.group == _digest_group(mixture, at, groups)
        _check_groups(mixture, groups, cursor.row, is_same=is_same)
    found = mixture.cursor(cursor.epoch, at, cursor.row // mixture.row_tokens)
    return replace(found, assigned=cursor.assigned, groups=groups)


def _resume_joined(mixture: Mixture, state: MixedState, counts: tuple[int, ...]) -> JoinedPoint | None:
    """Where the documents go on that sequences join, with shares that count from here on.

    If the source of the document that has begun is left out, so is the rest of that.
    """
    found, names = state.joined, mixture.names
    if (found is None) != (mixture.joined is None):
        raise StateError(
            "the state is corrupt: it does not tell which documents have begun. Load another copy of it"
        )
    if found is None:
        return None
    tokens = (0,) * len(names) if mixture.unit == "tokens" else ()
    if found.source not in names:
        return JoinedPoint(found.documents, counts, tokens=tokens)
    at = names.index(found.source)
    length = document_length(mixture.sources[at], counts[at] - 1) if counts[at] else 0
    if found.left >= length:
        raise StateError(
            f"the state is in a document of the source {found.source!r}, of which {found.left:,} tokens are left, and "
            f"it has {length:,}: resume with the transforms that made its tokens"
        )
    return JoinedPoint(found.documents, counts, at, found.left, tokens)


def _shares_tokens(state: MixedState) -> bool:
    return any(source.tokens is not None for _, source in state.sources)


def _check_groups(mixture: Mixture, groups: LengthGroups, row: int, *, is_same: bool) -> None:
    """Raise StateError if a group by length, in which a state at ``row`` lies, would not be read to its end."""
    if mixture.length_column != groups.column:
        raise StateError(
            f"rows up to row {row:,} were read with group_by_length={groups.steps} by column {groups.column!r}: resume "
            f"with mixture(length_column={groups.column!r}), as before"
        )
    if not is_same:
        raise StateError(
            f"the state is at row {row:,}, in the middle of a group of {groups.steps} steps by length, which ends at "
            f"row {groups.stop_row:,}: up to there, the sources, their shares and their passes must be as before. "
            "Change them at a state that was saved after a multiple of so many steps"
        )


def change_shares(mixture: Mixture, cursor: Cursor, step_rows: int, given: Any) -> Cursor:
    """The cursor at the same row, from which on a mixture has other shares."""
    shares = make_shares(given)
    unknown = [name for name in shares.names if name not in mixture.names]
    if unknown or len(shares.phases) > 1:
        raise PlanError(
            f"set_shares({given!r}): give a dict with the share of each source from here on; the sources are "
            f"{mixture.names}"
        )
    if cursor.groups is not None:
        left = -(-(cursor.groups.stop_row - cursor.row) // max(1, step_rows))
        raise PlanError(
            f"set_shares() comes in the middle of a group of {cursor.groups.steps} steps, whose rows have been "
            f"chosen: with group_by_length={cursor.groups.steps}, call it between groups. This one ends after {left} "
            "more steps"
        )
    leg = leg_at(mixture, cursor, step_rows)
    row = leg.row
    weights, before = shares.phases[0].weights(mixture.names), leg.point_at(row)
    counts, joined = tuple(leg.counts_at(row).tolist()), before.joined
    if joined is not None:
        joined = replace(joined, tokens=(0,) * len(joined.tokens))
    point = MixturePoint(counts, leg.shared_rows(row), weights, before.steps, row, joined)
    # another epoch, so that nothing of what was planned before is taken for the same
    return replace(mixture.cursor(cursor.epoch + 1, point, row), assigned=cursor.assigned)
