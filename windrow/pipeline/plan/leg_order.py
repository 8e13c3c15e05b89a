"""In which order the rows of a mixture's leg come if steps have rows of like length, and where a leg can end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from windrow.shuffle.order.length_groups import LengthGroups


@dataclass(frozen=True)
class LegOrder:
    """What tells where the steps of a leg begin, and in which order its rows come.

    Steps of ``step_rows`` rows begin at ``step_row`` and every so many rows before and behind it; ``step_rows`` is 0
    where they end by their tokens. ``begun`` is the group of steps in which the leg begins, and ``groups`` are those
    behind. ``stop`` is where the leg ends, if that is known, and ``least_rows`` what it has at least where steps end
    by their tokens.
    """

    step_rows: int = 1
    step_row: int = 0
    begun: LengthGroups | None = None
    groups: LengthGroups | None = None
    stop: int | None = None
    least_rows: int = 1

    @property
    def is_grouped(self) -> bool:
        """Whether rows come in another order than without groups."""
        return self.begun is not None or self.groups is not None

    def next_step(self, row: int) -> int:
        """The first row from one on at which a step begins."""
        return row + -(row - self.step_row) % max(1, self.step_rows)

    def spans(self, leg_row: int) -> list[LengthGroups]:
        """The groups of a leg that begins at a row: those from its first row on, each of them up to the next one."""
        found, at = [], leg_row
        if self.begun is not None:
            found.append(self.begun)
            at = self.begun.stop_row
        if self.groups is not None:
            own = replace(self.groups, first_row=self.next_step(at))
            if found and own.first_row == at and replace(found[0], first_row=at) == own:
                # the same groups go on
                return found
            if own.first_row > at:
                # the rest of the step in which the group ends
                found.append(replace(own, first_row=at, steps=0))
            found.append(own)
        elif found:
            # behind it, rows come as they do without groups
            found.append(replace(found[0], first_row=at, steps=0))
        return found

    def groups_from(self, leg_row: int, row: int) -> list[LengthGroups]:
        """The groups from a row on that is not in the middle of one, last ones first; see `spans`."""
        found: list[LengthGroups] = []
        for each in reversed(self.spans(leg_row)):
            if each.first_row <= row:
                begin = each.group_of(row).first_row if each.steps else row
                found.append(replace(each, first_row=begin, column=each.column if each.steps else ""))
                break
            found.append(each)
        return found

    def group_before(self, leg_row: int, row: int, stop: int) -> LengthGroups | None:
        """`group_at` for a leg that ends at ``stop``, where the last group has as many steps as there are."""
        group = self.group_at(leg_row, row)
        if group is None or group.stop_row <= stop:
            return group
        last = replace(group, steps=(stop - group.first_row) // group.step_rows)
        return last if row < last.stop_row else None

    def group_at(self, leg_row: int, row: int) -> LengthGroups | None:
        """The group that a row is in the middle of."""
        held = [each for each in self.spans(leg_row) if each.first_row <= row]
        if not held or not held[-1].steps:
            return None
        group = held[-1].group_of(row)
        return None if group.first_row == row else group

    def widen(self, leg_row: int, first_row: int, stop_row: int) -> tuple[int, int]:
        """The rows of all groups that have some of these rows, and these."""
        first, last = self.group_at(leg_row, first_row), self.group_at(leg_row, stop_row)
        first_row = first_row if first is None else first.first_row
        return first_row, stop_row if last is None else last.stop_row

    def end_behind(self, leg_row: int, row: int, wanted: int) -> int:
        """The last row up to ``wanted`` at which the leg can end, or else the first one behind ``row``."""
        base, unit = leg_row, max(1, self.step_rows)
        if self.is_grouped:
            last = self.spans(leg_row)[-1]
            base, unit = self.next_step(last.first_row), unit * max(1, last.steps)
        steps = max(1, (wanted - base) // unit)
        end = base + steps * unit
        while end <= row:
            end += unit
        return end
