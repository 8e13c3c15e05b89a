"""`Explanation`: what running a pipeline will do, as text and as HTML."""

from __future__ import annotations

from dataclasses import dataclass

from windrow.core.byte_sizes import format_bytes
from windrow.core.notebook_html import format_paragraph, format_table, format_value
from windrow.core.terminal_text import escape_controls, format_count
from windrow.pipeline.plan.window_budget import Budget
from windrow.shuffle.order.shard_assignment import Equal

_SHOWN_CHANGES = 5


@dataclass(frozen=True)
class Explanation:
    """What running a pipeline will do; ``print`` it, or read its attributes.

    Attributes
    ----------
    epochs
        Number of epochs; None: endless.
    seed
        Seed of the shuffle; None: stored order.
    shuffles_blocks
        Whether the shuffle leaves the rows of each block in order.
    sort
        How the rows of each window are sorted; empty if they are not.
    order_version
        Version of the algorithm that defines the order.
    executor
        The executor, and why it was chosen.
    source
        Description of the data source.
    rows
        Rows per epoch: an upper bound where ``rows_known`` is False, an estimate where
        ``rows_bounded`` is False too.
    rows_known
        Whether the manifest states the row counts.
    decoded_bytes
        Decoded bytes per epoch, from file footers.
    bytes_exact
        Whether sizes are exact rather than estimated.
    transforms
        Number of transforms before and after the shuffle.
    schema_changes
        The columns that some files store in another type, or lack: one text each.
    stages
        What runs where: what is joined by "+" runs in one task. Empty without transforms.
    windows
        Windows per epoch that contain blocks.
    blocks
        Blocks per epoch.
    shards, equal
        Number of shards, and how the last step is assigned to them.
    replicas
        Number of readers of each shard, which get the same rows.
    mesh
        The dimensions of the mesh, and what they mean; empty without one.
    rank_bytes
        Bytes of an epoch that one reader gets, before it selects columns.
    batch_rows
        Rows per batch, or None if not given; then the next three are None too.
    steps
        Steps per epoch, including the last one.
    last_step_rows
        Rows of the last step over all shards if it is not a full one, else 0.
    left_out_rows
        Rows per epoch that no shard receives.
    tasks, objects
        Tasks of the largest window, and the maximum number of objects that they output: one per
        node with shards and slice.
    budget
        The memory budget; its ``total_bytes`` is the bound that the run keeps.
    user_warnings
        Warnings, one line each.
    cache
        Where decoded blocks are cached, and how many; empty without ``options(cache=...)``.
    skips_corrupt
        Whether corrupt blocks are skipped.
    workers
        Number of tasks that run concurrently.
    processes
        Number of launched processes that share the workers and the default memory limit.
    packing
        The call of `pack`; then ``rows`` counts sequences. Empty: documents are not packed.
    sources, round_rows
        Of a mixture, its sources with their first shares, and the rows that are delivered at a time; ``rows`` and
        ``decoded_bytes`` are then those of one pass of each source. Empty and 0: the pipeline is no mixture.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
    >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
    >>> plan = windrow.read_parquet("numbers.parquet").repeat(3).explain(2, batch_size=2)
    >>> plan.rows, plan.steps, plan.last_step_rows
    (6, 2, 2)
    """

    epochs: int | None
    seed: int | None
    order_version: int
    executor: str
    source: str
    rows: int
    rows_known: bool
    decoded_bytes: int
    bytes_exact: bool
    transforms: tuple[int, int]
    windows: int
    blocks: int
    shards: int
    equal: Equal
    batch_rows: int | None
    steps: int | None
    last_step_rows: int | None
    left_out_rows: int | None
    tasks: int
    objects: int
    budget: Budget
    user_warnings: tuple[str, ...] = ()
    cache: str = ""
    rows_bounded: bool = True
    skips_corrupt: bool = False
    workers: int = 1
    processes: int = 1
    packing: str = ""
    shuffles_blocks: bool = False
    sort: str = ""
    stages: str = ""
    schema_changes: tuple[str, ...] = ()
    replicas: int = 1
    mesh: str = ""
    rank_bytes: int = 0
    sources: str = ""
    round_rows: int = 0

    def __str__(self) -> str:
        lines = [f"{label:<8} {text}" if label else text for label, text in self._lines()]
        return "\n".join(map(escape_controls, lines))

    def _repr_html_(self) -> str:
        (_, head), *lines = self._lines()
        warnings = [f"Warning: {text}" for label, text in lines if label == "warning"]
        facts = [line for line in lines if line[0] not in ("memory", "warning")]
        budget = self.budget
        memory = [
            *self._memory_parts(),
            ("together", self._format_total()),
            ("limit", format_bytes(budget.limit_bytes)),
        ]
        return format_value(
            format_paragraph(head, is_title=True),
            format_table(facts, names=True),
            format_table(memory, ["memory", "peak"]),
            *map(format_paragraph, warnings),
        )

    def _lines(self) -> list[tuple[str, str]]:
        """What is printed, line by line: a label and a text; the first line has no label."""
        return [
            ("", self._format_head()),
            ("rows", f"{self._format_rows()}{'; ' if self.source else ''}{self.source}"),
            *([("schema", self._format_schema_changes())] if self.schema_changes else []),
            *([("sources", self.sources)] if self.sources else []),
            (
                "bytes",
                f"{'' if self.bytes_exact else 'about '}{format_bytes(self.decoded_bytes)} decoded an epoch",
            ),
            ("windows", self._format_windows()),
            ("shards", self._format_shards()),
            *([("mesh", self.mesh)] if self.mesh else []),
            *([("replicas", self._format_replicas())] if self.replicas > 1 else []),
            ("tasks", self._format_tasks()),
            *([("stages", self.stages)] if self.stages else []),
            ("memory", self._format_memory()),
            *([("cache", self.cache)] if self.cache else []),
            *([("share", self._format_share())] if self.processes > 1 else []),
            *(("warning", line) for line in self.user_warnings),
        ]

    def _format_head(self) -> str:
        if self.sources:
            return f"mixture, seed {self.seed}, order v{self.order_version}, executor {self.executor}"
        epochs = "endless epochs" if self.epochs is None else format_count(self.epochs, "epoch")
        order = "stored order" if self.seed is None else f"seed {self.seed}, order v{self.order_version}"
        order += ", blocks only" if self.shuffles_blocks else ""
        order += f", {self.sort}" if self.sort else ""
        return f"{epochs}, {order}, executor {self.executor}"

    def _format_rows(self) -> str:
        if self.sources:
            return f"{self.rows:,} {'sequences ' if self.packing else ''}in one pass of each source"
        if self.rows_known:
            return f"{self.rows:,} an epoch"
        skipped = ", corrupt blocks skipped" if self.skips_corrupt else ""
        packed = f", by {self.packing}" if self.packing else ""
        bound = "at most" if self.rows_bounded else "about"
        return f"{bound} {self.rows:,} an epoch{packed}, to be counted{skipped}"

    def _format_schema_changes(self) -> str:
        more = len(self.schema_changes) - _SHOWN_CHANGES
        shown = "; ".join(self.schema_changes[:_SHOWN_CHANGES])
        return f"{shown}; and {format_count(more, 'more column')}" if more > 0 else shown

    def _format_windows(self) -> str:
        if self.sources:
            needed = format_bytes(self.budget.window_bytes)
            what = "sequences" if self.packing else "rows"
            rounds = f"delivered in rounds of {self.round_rows:,} {what}"
            return f"{rounds}; the sources' windows that one needs take {needed}"
        if self.windows <= 1:
            return "1 an epoch: the whole dataset" if self.windows else "none: there is no data"
        size = format_bytes(self.decoded_bytes / self.windows)
        return f"{self.windows:,} an epoch of about {size} ({100 / self.windows:.2g} % of the data each)"

    def _format_shards(self) -> str:
        text = f"{self.shards:,}, equal={self.equal!r}"
        if self.batch_rows is None:
            return text
        text += f"; batch_size {self.batch_rows:,}: "
        if self.steps is None and self.sources:
            return f"{text}steps until the mixture ends"
        if self.steps is None:
            return text + "the number of steps is known once rows are counted"
        text += format_count(self.steps, "step")
        if self.last_step_rows:
            text += f", the last of {format_count(self.last_step_rows, 'row')}"
        return text + f", {format_count(self.left_out_rows or 0, 'row')} left out"

    def _format_replicas(self) -> str:
        return (
            f"{self.replicas:,} of each shard, of which each gets {format_bytes(self.rank_bytes)} an epoch; a node "
            "places the rows of a shard once for all of them"
        )

    def _format_tasks(self) -> str:
        return f"up to {self.tasks:,} a window; {format_count(self.objects, 'object')}"

    def _format_share(self) -> str:
        return (
            f"{self.processes:,} processes of a launcher divide the workers and the default memory limit: "
            f"{format_count(self.workers, 'worker')} each"
        )

    def _memory_parts(self) -> list[tuple[str, str]]:
        """What takes memory, and how much."""
        budget = self.budget
        windows = budget.windows_limit_bytes if budget.exact else budget.windows_bytes
        sizes = [
            (format_count(budget.windows, "window"), windows),
            ("runs", budget.runs_bytes),
            ("tasks", budget.tasks_bytes),
        ]
        others = [
            ("cache", budget.cache_bytes),
            ("reuse", budget.reuse_bytes),
            ("processes", budget.processes_bytes),
        ]
        sizes += [(name, size) for name, size in others if size]
        return [(name, format_bytes(size)) for name, size in sizes]

    def _format_total(self) -> str:
        return ("≤ " if self.budget.exact else "about ") + format_bytes(self.budget.total_bytes)

    def _format_memory(self) -> str:
        parts = " + ".join(f"{name} {size}" for name, size in self._memory_parts())
        return f"{self._format_total()} = {parts}; limit {format_bytes(self.budget.limit_bytes)}"
