"""LogicalPlan: the calls of a pipeline so far (source, transforms, windows, epochs, seed, options), frozen.

Every method returns a new plan, and nothing is read. The order of ``window``, ``repeat`` and
``random_shuffle_each_window`` does not matter; whether ``map_batches`` comes before or after the
shuffle does.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any

import pyarrow as pa

from windrow.core.byte_sizes import format_bytes, parse_bytes
from windrow.core.errors import PlanError
from windrow.core.integers import check_count
from windrow.core.source import Source, TracingSource
from windrow.core.terminal_text import escape_controls
from windrow.core.user_functions import function_name
from windrow.dataset.argument_checks import check_seed
from windrow.io.adapters.in_memory_tables import InMemoryBlocks, hold_tables
from windrow.io.catalog.manifest import digest_parts
from windrow.pipeline.exchange.derived_source import Parent
from windrow.pipeline.exchange.exchange_source import ExchangePlan, exchange_source
from windrow.pipeline.exchange.layouts import Layout, WindowLayout
from windrow.pipeline.exchange.rearranged_source import RearrangedSource, combine_schemas
from windrow.pipeline.executors.choose_executor import ray_is_initialized
from windrow.pipeline.plan.job import Job, Options
from windrow.pipeline.plan.mixture import Mixture
from windrow.pipeline.tasks.actor_pool import CorePool
from windrow.pipeline.tasks.key_columns import WindowSort
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.sequence_packing import SequencePacking
from windrow.shuffle.order.epoch_plan import WindowCut

DEFAULT_WINDOW_BYTES = 2**30
# where blocks are large, so many of them make a window by default, which mixes within 2 % of a full shuffle
_DEFAULT_WINDOW_BLOCKS = 50
_MAX_DEFAULT_WINDOW_BYTES = 2**32
_SHOWN_DATASETS = 8
# Without a shuffle, windows do not affect the order; they are only units of work, and small ones save memory.
UNSHUFFLED_WINDOW_BYTES = 256 * 2**20
# JSON readers that parse numbers as doubles keep integers of up to 53 bits exact.
DRAWN_SEED_BITS = 53


@dataclass(frozen=True)
class LogicalPlan:
    """A source and the operations on it."""

    source: Source
    before: tuple[MapBatches, ...] = ()  # transforms before the shuffle; without one, all of them
    after: tuple[MapBatches, ...] = ()
    cut: WindowCut | None = None  # as window() gave it
    epochs: int | None = 1  # None: repeat forever
    seed: int | None = None  # None: no shuffle
    seed_drawn: bool = False  # instead of given
    shuffles_blocks: bool = False  # and leaves the rows of each block in order
    sort: WindowSort | None = None  # of each window, behind the shuffle
    packing: SequencePacking | None = None  # behind the shuffle
    mixture: Mixture | None = None  # of the source's rows, which are those of several pipelines
    options: Options = field(default_factory=Options)

    def __str__(self) -> str:
        return escape_controls("\n  ".join([repr(self.source), *self._steps()]), keep="\n")

    @property
    def maps(self) -> tuple[MapBatches, ...]:
        """All transforms, first to last."""
        return self.before + self.after

    @property
    def delivers_blocks(self) -> bool:
        """Whether rows are delivered block by block, each as its transforms make it."""
        return self.seed is None and self.sort is None and self.packing is None and self.mixture is None

    def windowed(self, blocks_per_window: int | None, bytes_per_window: int | str | None) -> LogicalPlan:
        """Cut epochs into windows."""
        self._check_no_mixture("window()")
        if self.cut is not None:
            if self.cut.of_source:
                raise PlanError(
                    "the pipeline has the windows that it was made of: use rewindow() to cut others"
                )
            raise PlanError(
                f"the pipeline already has a window ({_cut_text(self.cut)}): keep one window() call"
            )
        if blocks_per_window is not None and bytes_per_window is not None:
            raise PlanError(
                f"window(blocks_per_window={blocks_per_window!r}, bytes_per_window={bytes_per_window!r}) "
                "gives both sizes: give one of them"
            )
        if blocks_per_window is not None:
            blocks = check_count(blocks_per_window, "blocks_per_window")
            return replace(self, cut=WindowCut(blocks_per_window=blocks))
        if bytes_per_window is None:
            return replace(self, cut=WindowCut(bytes_per_window=self._choose_window_bytes(), is_chosen=True))
        return replace(
            self, cut=WindowCut(bytes_per_window=parse_bytes(bytes_per_window, "bytes_per_window"))
        )

    def _choose_window_bytes(self) -> int:
        """The default size of windows, from the blocks alone: enough blocks to mix, from 1 to 4 GiB."""
        sizes = self.source.blocks.decoded_bytes
        size = _DEFAULT_WINDOW_BLOCKS * int(sizes.sum()) // max(len(sizes), 1)
        return min(max(size, DEFAULT_WINDOW_BYTES), _MAX_DEFAULT_WINDOW_BYTES)

    def repeated(self, times: int | None) -> LogicalPlan:
        """Multiply the number of passes; a pipeline that repeats forever stays so."""
        self._check_no_mixture("repeat()")
        if times is not None:
            times = check_count(times, "times", "or None to repeat forever")
        forever = times is None or self.epochs is None
        return replace(self, epochs=None if forever else (self.epochs or 1) * (times or 1))

    def shuffled(self, seed: int | None) -> LogicalPlan:
        """Shuffle each window; if no seed is given, one is drawn now."""
        self._check_no_mixture("a shuffle")
        if self.seed is not None:
            raise PlanError(
                f"the pipeline already shuffles (seed={self.seed}): keep one {self._shuffle_call}() call"
            )
        if self.packing is not None:
            raise PlanError(
                f"random_shuffle_each_window() comes after {self.packing}: shuffle first, since documents are "
                "shuffled, and packed in their new order"
            )
        if self.sort is not None:
            raise PlanError(
                f"a shuffle comes after {self.sort}, and would undo it: shuffle first, so that rows with equal keys "
                "come in a random order"
            )
        late = bool(self.before) and all(stage.is_late for stage in self.before)
        plan = replace(self, before=(), after=self.before) if late else self
        if seed is not None:
            return replace(plan, seed=check_seed(seed))
        return replace(plan, seed=secrets.randbits(DRAWN_SEED_BITS), seed_drawn=True)

    def _with_late_stages_before(self) -> LogicalPlan:
        """Undo what `shuffled` moved, for a step that comes between the shuffle and all transforms after it."""
        if all(stage.is_late for stage in self.after):
            return replace(self, before=(*self.before, *self.after), after=())
        return self

    def sorted(self, sort: WindowSort) -> LogicalPlan:
        """Sort the rows of each window, once, behind the shuffle."""
        self._check_no_mixture(str(sort))
        if self.sort is not None:
            raise PlanError(f"the pipeline already sorts ({self.sort}): keep one sort_each_window() call")
        if self.packing is not None:
            raise PlanError(f"{sort} comes after {self.packing}: sequences have no order")
        plan = self._with_late_stages_before()
        if plan.after:
            raise PlanError(
                f"{plan.after[0].name} stands between {self._shuffle_call}() and {sort}: call it before the shuffle, "
                "or behind the sort"
            )
        if not plan.before:
            sort.check_schema(self.read_source.schema)
        return replace(plan, sort=sort)

    def packed(self, packing: SequencePacking) -> LogicalPlan:
        """Pack documents into sequences, once, in the order of the shuffle."""
        if self.packing is not None:
            raise PlanError(f"the pipeline already packs ({self.packing}): keep one pack() call")
        if self.sort is not None:
            raise PlanError(
                f"{packing} comes after {self.sort}: documents are packed in a random or stored order"
            )
        plan = self._with_late_stages_before()
        if plan.after:
            raise PlanError(
                f"{plan.after[0].name} stands between random_shuffle_each_window() and pack(): call it before the "
                "shuffle for documents, or after pack() for sequences"
            )
        if not plan.before:
            packing.check_schema(self.read_source.schema)
        return replace(plan, packing=packing)

    def _check_no_mixture(self, call: str) -> None:
        if self.mixture is not None:
            raise PlanError(
                f"{call} comes after mixture(), whose sources have orders of their own: call it on each source"
            )

    def stream_digest(self) -> str:
        """A digest of the data and of its order in all passes."""
        parent, identity = make_parent(self), self.source.identity()
        cut = self.window_cut
        sizes = (
            b"" if cut.bytes_per_window is None else self.source.blocks.decoded_bytes.astype("<i8").tobytes()
        )
        order = (cut.blocks_per_window, cut.bytes_per_window, cut.of_source, self.seed, self.shuffles_blocks)
        blocks = (identity.block_bytes, identity.filter, identity.cuts_row_groups)
        packed = [] if self.packing is None else [self.packing.identity.encode()]
        return digest_parts([parent.digest, repr((order, blocks)).encode(), sizes, *packed])

    def mapped(self, stage: MapBatches) -> LogicalPlan:
        """Add a transform: after the shuffle, or `packed`, if the plan already has one, else before it."""
        if self.delivers_blocks:
            return replace(self, before=(*self.before, stage))
        is_packed = self._packs
        step = "pack()" if is_packed else f"{self._shuffle_call}()"
        plan = self._with_late_stages_before()
        if stage.only_drops and plan.sort is None and not (plan.packing or plan.mixture or plan.after):
            # which rows stay does not depend on their order
            return replace(plan, before=(*plan.before, stage))
        if not stage.preserves_rows:
            fix = "before the shuffle" if self.mixture is None else "on each source"
            raise PlanError(
                f"{stage.name}{'' if stage.call else ' with preserves_rows=False'} comes after {step}, where the "
                f"positions of rows are already fixed: call it {fix}"
            )
        if stage.rng and self.packing is not None:
            fix = "call it before" if is_packed else "sequences of packed sources are not changed at random"
            raise PlanError(f"{stage.name} with rng=True comes after {step}: {fix}")
        return replace(self, after=(*self.after, stage))

    def configured(self, **changes: Any) -> LogicalPlan:
        """Change options; an Ellipsis leaves an option unchanged."""
        given = {name: value for name, value in changes.items() if not isinstance(value, EllipsisType)}
        if self.mixture is not None and given.get("on_error") == "skip":
            raise PlanError(
                "on_error='skip' is not for mixtures: the rows of all sources are counted beforehand"
            )
        return replace(self, options=replace(self.options, **given))

    @property
    def window_cut(self) -> WindowCut:
        """How epochs are cut into windows, also without a call of window()."""
        if self.cut is not None:
            return self.cut
        return WindowCut(bytes_per_window=UNSHUFFLED_WINDOW_BYTES) if self.seed is None else WindowCut()

    def job(self) -> Job:
        """Return the job that delivers this plan's epochs."""
        mixture = self.mixture
        if mixture is not None and self.packing is None and "tokens" in (mixture.unit, mixture.shares.unit):
            raise PlanError(
                "mixture: shares and schedules of tokens are for documents that are packed: end the mixture, or each "
                "source, with pack(seq_len, columns)"
            )
        return Job(
            self.read_source,
            self.window_cut,
            self.epochs,
            self.seed,
            self.before,
            self.after,
            self.options,
            seed_drawn=self.seed_drawn,
            packing=self.packing,
            shuffles_blocks=self.shuffles_blocks,
            sort=self.sort,
            mixture=self.mixture,
        )

    @property
    def _packs(self) -> bool:
        """Whether the rows of the source are packed here, and not those of a mixture's sources."""
        return self.packing is not None and (self.mixture is None or self.mixture.joined is not None)

    @property
    def _shuffle_call(self) -> str:
        if self.mixture is not None:
            return "mixture"
        if self.sort is not None:
            return "sort_each_window"
        return self._seeded_call

    @property
    def _seeded_call(self) -> str:
        return "randomize_block_order_each_window" if self.shuffles_blocks else "random_shuffle_each_window"

    @property
    def read_source(self) -> Source:
        """The source as it is read: with the column of row ids if ``options(row_id_column=...)`` is set."""
        name = self.options.row_id_column
        if name is None:
            return self.source
        if not isinstance(self.source, TracingSource):
            raise PlanError(f"row_id_column={name!r}: {self.source!r} does not support row ids")
        return self.source.with_row_id(name)

    def _steps(self) -> list[str]:
        """Return the calls that build this plan; calls whose order does not matter come in a canonical order."""
        steps = [_map_text(stage) for stage in self.before]
        if self.cut is not None and not self.cut.of_source and self.cut != WindowCut():
            steps.append(f".window({_cut_text(self.cut)})")
        if self.epochs != 1:
            steps.append(f".repeat({'' if self.epochs is None else self.epochs})")
        if self.seed is not None:
            steps.append(f".{self._seeded_call}(seed={self.seed})")
        if self.sort is not None:
            steps.append(f".{self.sort}")
        if self._packs:
            steps.append(f".{self.packing}")
        steps += [_map_text(stage) for stage in self.after]
        changed = _options_text(self.options)
        return [*steps, f".options({changed})"] if changed else steps


def _cut_text(cut: WindowCut) -> str:
    if cut.blocks_per_window is not None:
        return f"blocks_per_window={cut.blocks_per_window}"
    size = cut.bytes_per_window or 0
    text = format_bytes(size).replace(" ", "")
    # a rounded size would mean different windows
    exact = parse_bytes(text, "bytes_per_window") == size
    return f"bytes_per_window={text!r}" if exact else f"bytes_per_window={size}"


def _map_text(stage: MapBatches) -> str:
    if stage.call:
        return f".{stage.call}"
    given = "" if stage.preserves_rows else ", preserves_rows=False"
    given += ", rng=True" if stage.rng else ""
    if stage.pool is not None:
        pool = "'processes'" if isinstance(stage.pool, CorePool) else repr(stage.pool)
        given += f", compute={pool}"
    given += f", {stage.resources}" if stage.resources else ""
    return f".map_batches({function_name(stage.fn)}{given})"


def _options_text(options: Options) -> str:
    default = Options()
    changed = [name for name in vars(default) if getattr(options, name) != getattr(default, name)]
    return ", ".join(f"{name}={getattr(options, name)!r}" for name in changed)


def make_parent(plan: LogicalPlan) -> Parent:
    """Return the source and transforms of a dataset's plan."""
    return Parent(plan.read_source, plan.maps)


def check_columns(plans: Sequence[LogicalPlan], call: str) -> None:
    """Raise a SourceError if the columns of plans do not unify, as far as they are known without reading."""
    known = [make_parent(plan).known_schema for plan in plans]
    if None not in known:
        combine_schemas([schema for schema in known if schema is not None], call)


def rearranged_plan(plans: Sequence[LogicalPlan], layout: Layout, call: str) -> LogicalPlan:
    """Return the plan whose rows a layout takes from other plans; the first one's options hold."""
    parents = tuple(make_parent(plan) for plan in plans)
    source = RearrangedSource(parents, call, _describe_rearranged(plans, call), layout)
    return _plan_of(source, plans[0])


def _describe_rearranged(plans: Sequence[LogicalPlan], call: str) -> str:
    """How the first of some datasets is printed, with a call at its end, and the others below."""
    shown = [str(plan).replace("\n", "\n    ") for plan in plans[1 : 1 + _SHOWN_DATASETS]]
    lines = [str(plans[0]), f"  .{call}", *(f"    with {text}" for text in shown)]
    if len(plans) > 1 + _SHOWN_DATASETS:
        lines.append(f"    and {len(plans) - 1 - _SHOWN_DATASETS} more")
    return "\n".join(lines)


def windowed_plan(plans: Sequence[LogicalPlan], layout: WindowLayout, call: str) -> LogicalPlan:
    """Return the plan of a pipeline with the windows of a layout; the first one's epochs and options hold."""
    return replace(
        rearranged_plan(plans, layout, call), cut=WindowCut(of_source=True), epochs=plans[0].epochs
    )


def exchange_plan(plan: LogicalPlan, parent: Parent, exchange: ExchangePlan, call: str) -> LogicalPlan:
    """Return the plan of an exchange's result."""
    source = exchange_source(parent, exchange, plan.options, call, f"{plan}\n  .{call}")
    return _plan_of(source, plan)


def _plan_of(source: Any, plan: LogicalPlan) -> LogicalPlan:
    # the column of row ids is an ordinary one in the result
    return LogicalPlan(source, options=replace(plan.options, row_id_column=None))


def tables_plan(tables: Sequence[pa.Table], caller: str, target_bytes: int) -> LogicalPlan:
    """Return the plan of concatenated tables in memory."""
    return LogicalPlan(hold_tables(tables, caller, target_bytes, carry_blocks))


def carry_blocks(blocks: InMemoryBlocks) -> tuple[Any, ...] | None:
    """Return what ``__reduce__`` of in-memory blocks returns; None: pickle the blocks themselves."""
    if not ray_is_initialized():
        return None
    from windrow.pipeline.executors.ray.data.object_store import reduce_to_references

    return reduce_to_references(blocks)
