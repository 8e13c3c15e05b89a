"""`Shares`: which part of a mixture's rows each source has, for all time or by a schedule."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import lcm
from numbers import Rational
from typing import Any, Literal, get_args

from windrow.core.cached_properties import cached_property
from windrow.core.errors import PlanError
from windrow.core.integers import as_integer

Unit = Literal["steps", "rows", "tokens"]

# Shares whose common denominator is larger are rounded to parts of this.
_PARTS = 2**18
_DEFAULT_STAIRS = 100
_SHOWN_PHASES = 6


@dataclass(frozen=True)
class Phase:
    """From ``start`` on, in the schedule's unit, each source has a share in proportion to its number."""

    start: int
    shares: tuple[tuple[str, Fraction], ...]  # by name, in the order given

    def weights(self, names: Sequence[str]) -> tuple[int, ...]:
        """(sources,) integers in proportion to the shares; 0 for sources that have none."""
        shares = dict(self.shares)
        return _as_integers([shares.get(name, Fraction(0)) for name in names])


@dataclass(frozen=True)
class Shares:
    """The shares of a mixture's sources, constant or by a schedule: a value that can be compared, hashed and printed.

    Create one with `Shares.constant`, `Shares.steps` or `Shares.linear`. Shares are any numbers of 0 or more: only
    their proportions count. They are taken as they are written, so 0.1 is one tenth. If no common denominator below
    262,144 fits them, they are rounded to multiples of its reciprocal.

    Examples
    --------
    >>> import windrow
    >>> warm_up = windrow.Shares.steps({0: {"web": 1}, 1_000: {"web": 3, "code": 1}})
    >>> warm_up
    Shares.steps({0: {'web': 1}, 1000: {'web': 3, 'code': 1}}, unit='steps')
    >>> windrow.Shares.from_json(warm_up.to_json()) == warm_up
    True
    """

    phases: tuple[Phase, ...]
    unit: Unit = "steps"

    @classmethod
    def constant(cls, shares: Mapping[str, Any]) -> Shares:
        """Return the same shares for all time.

        Parameters
        ----------
        shares
            By source name, its share: a number of 0 or more. Not all may be 0.

        Raises
        ------
        PlanError
            If a name or a share is invalid.
        """
        return cls((Phase(0, _check_shares(shares)),))

    @classmethod
    def steps(cls, phases: Mapping[int, Mapping[str, Any]], *, unit: Unit = "steps") -> Shares:
        """Return shares that change at some steps, and stay until the next change.

        Parameters
        ----------
        phases
            By the step at which they begin, counted from the mixture's start, shares as in `constant`. One of them
            begins at 0. A source that is not named has no share meanwhile.
        unit
            ``"steps"``; ``"rows"`` of the mixture over all shards; or, where documents are packed, ``"tokens"``. Shares
            that begin within a sequence of one source hold from the next one on. Where sequences join documents of all
            sources, rows are documents, and shares hold from the first document on that begins there.

        Raises
        ------
        PlanError
            If an argument is invalid.

        Examples
        --------
        >>> import windrow
        >>> windrow.Shares.steps({0: {"easy": 1}, 100: {"easy": 1, "hard": 1}}).at(100)
        {'easy': 0.5, 'hard': 0.5}
        """
        if not isinstance(phases, Mapping) or not phases:
            raise PlanError(
                f"Shares.steps({phases!r}): give a dict from steps to the shares that begin there"
            )
        found = []
        for start, shares in phases.items():
            number = as_integer(start)
            if number is None or number < 0:
                raise PlanError(
                    f"Shares.steps: {start!r} must be an integer of 0 or more: where shares begin"
                )
            found.append(Phase(number, _check_shares(shares)))
        found.sort(key=lambda phase: phase.start)
        if found[0].start:
            raise PlanError(
                f"Shares.steps: the first shares begin at {found[0].start}: give those that begin at 0"
            )
        return cls(tuple(found), _check_unit(unit))

    @classmethod
    def linear(
        cls,
        first: Mapping[str, Any],
        last: Mapping[str, Any],
        *,
        stop: int,
        start: int = 0,
        stairs: int = _DEFAULT_STAIRS,
        unit: Unit = "steps",
    ) -> Shares:
        """Return shares that move evenly from some to others, in small stairs.

        Parameters
        ----------
        first, last
            Shares as in `constant`: those up to ``start``, and those from ``stop`` on.
        stop, start
            Where the ramp ends and begins, counted from the mixture's start.
        stairs
            Number of changes on the way. Shares are constant in between.
        unit
            As in `steps`.

        Raises
        ------
        PlanError
            If an argument is invalid.

        Examples
        --------
        >>> import windrow
        >>> ramp = windrow.Shares.linear({"web": 1}, {"web": 1, "code": 1}, stop=1_000, stairs=4)
        >>> [round(ramp.at(step)["code"], 3) for step in (0, 250, 600, 1_000)]
        [0.062, 0.188, 0.312, 0.5]
        """
        begins, ends, count = as_integer(start), as_integer(stop), as_integer(stairs)
        if begins is None or ends is None or count is None or not 0 <= begins < ends or count < 1:
            raise PlanError(
                f"Shares.linear(start={start!r}, stop={stop!r}, stairs={stairs!r}): give integers, with "
                "0 <= start < stop and at least one stair"
            )
        before, after = _normalised(_check_shares(first)), _normalised(_check_shares(last))
        names = list(dict.fromkeys([*before, *after]))
        phases = [Phase(0, tuple(before.items()))] if begins else []
        count = min(count, ends - begins)
        for stair in range(count):
            # halfway of the stair, so that the ramp as a whole has the mean of both ends
            done = Fraction(2 * stair + 1, 2 * count)
            shares = (
                (name, before.get(name, Fraction(0)) * (1 - done) + after.get(name, Fraction(0)) * done)
                for name in names
            )
            phases.append(Phase(begins + (ends - begins) * stair // count, tuple(shares)))
        return cls((*phases, Phase(ends, tuple(after.items()))), _check_unit(unit))

    @property
    def names(self) -> tuple[str, ...]:
        """The sources that have a share in some phase."""
        return tuple(dict.fromkeys(name for phase in self.phases for name, _ in phase.shares))

    def at(self, place: int) -> dict[str, float]:
        """The shares at a step, or, by `unit`, a row or token of the mixture; they add up to 1."""
        phase = self.phases[self.phase_at(place)]
        return {name: float(share) for name, share in _normalised(phase.shares).items()}

    def phase_at(self, place: int) -> int:
        """The number of the phase that holds at a step, row or token."""
        return max(number for number, phase in enumerate(self.phases) if phase.start <= place)

    def in_rows(self, row_tokens: int) -> Shares:
        """The same schedule with tokens counted in rows of so many, each change at the next whole row."""
        if self.unit != "tokens":
            return self
        # of those that begin at the same row, the last one holds
        by_row = {-(-phase.start // row_tokens): phase for phase in self.phases}
        return Shares(tuple(replace(phase, start=row) for row, phase in by_row.items()), "rows")

    def to_json(self) -> str:
        """Return the shares as JSON, for `from_json`."""
        phases = [[phase.start, {name: str(share) for name, share in phase.shares}] for phase in self.phases]
        return json.dumps({"unit": self.unit, "phases": phases})

    @classmethod
    def from_json(cls, text: str) -> Shares:
        """Return the shares that `to_json` wrote.

        Raises
        ------
        PlanError
            If the text is anything else.
        """
        try:
            found = json.loads(text)
            phases = {
                start: {name: Fraction(share) for name, share in shares.items()}
                for start, shares in found["phases"]
            }
            return cls.steps(phases, unit=found["unit"])
        except (ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError) as error:
            raise PlanError(f"Shares.from_json got {text!r}: pass what to_json() returned") from error

    @cached_property
    def _text(self) -> str:
        shares = [{name: _shown(share) for name, share in phase.shares} for phase in self.phases]
        if len(shares) == 1:
            return f"Shares.constant({shares[0]})"
        shown = [f"{phase.start}: {given}" for phase, given in zip(self.phases, shares, strict=True)]
        if len(shown) > _SHOWN_PHASES:
            shown[2:-1] = [f"... {len(shown) - 3} more ..."]
        return f"Shares.steps({{{', '.join(shown)}}}, unit={self.unit!r})"

    def __repr__(self) -> str:
        return self._text


def make_shares(given: Any) -> Shares:
    """Return an argument that is `Shares`, or a dict of constant ones."""
    return given if isinstance(given, Shares) else Shares.constant(given)


def _check_shares(given: Any) -> tuple[tuple[str, Fraction], ...]:
    if not isinstance(given, Mapping) or not given:
        raise PlanError(
            f"shares {given!r}: give a dict with the share of each source, such as {{'web': 0.7}}"
        )
    found = []
    for name, share in given.items():
        exact = as_fraction(share)
        if not isinstance(name, str) or exact is None or exact < 0:
            raise PlanError(
                f"the share {share!r} of {name!r}: give numbers of 0 or more, by the names of sources"
            )
        found.append((name, exact))
    if not any(share for _, share in found):
        raise PlanError(f"shares {dict(given)!r}: at least one must be above 0")
    return tuple(found)


def as_fraction(value: Any) -> Fraction | None:
    """A number as it is written: 0.1 is one tenth; None for anything else, and what is not finite."""
    if isinstance(value, bool):
        return None
    item = getattr(value, "item", None)
    number = item() if callable(item) and not getattr(value, "shape", ()) else value
    if isinstance(number, (Rational, Decimal)):
        return Fraction(number)
    try:
        return Fraction(repr(number)) if isinstance(number, float) else None
    except ValueError:
        return None


def _check_unit(unit: Any) -> Unit:
    if unit not in get_args(Unit):
        raise PlanError(f"unit={unit!r} must be 'steps', 'rows' or 'tokens'")
    return unit


def _normalised(shares: Sequence[tuple[str, Fraction]]) -> dict[str, Fraction]:
    total = sum((share for _, share in shares), Fraction(0))
    return {name: share / total for name, share in shares}


def _as_integers(shares: Sequence[Fraction]) -> tuple[int, ...]:
    """Integers in proportion to the shares, exactly or, with a sum of `_PARTS`, as nearly as possible."""
    total = sum(shares, Fraction(0))
    exact = [share / total for share in shares] if total else list(shares)
    common = lcm(*(share.denominator for share in exact))
    if common <= _PARTS:
        return tuple(int(share * common) for share in exact)
    parts = [max(1, int(share * _PARTS)) if share else 0 for share in exact]
    # those that lost most get what is left
    by_loss = sorted(range(len(exact)), key=lambda at: (parts[at] - exact[at] * _PARTS, at))
    for at in by_loss[: max(0, _PARTS - sum(parts))]:
        parts[at] += 1
    return tuple(parts)


def _shown(share: Fraction) -> Any:
    if share.denominator == 1:
        return int(share)
    as_float = float(share)
    return as_float if Fraction(repr(as_float)) == share else share


def phase_starts(
    shares: Shares, *, row: int, steps: int, row_of: Callable[[int], int]
) -> Iterator[tuple[int, Phase]]:
    """The row at which each phase begins, from the one on that holds at ``row``, which comes after ``steps`` steps.

    ``row_of`` gives the row at which a later step begins.
    """
    place = steps if shares.unit == "steps" else row
    current = shares.phase_at(place)
    yield row, shares.phases[current]
    for phase in shares.phases[current + 1 :]:
        yield (row_of(phase.start) if shares.unit == "steps" else phase.start), phase
