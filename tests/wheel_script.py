"""What a windrow installed from its wheel does, on any Python: writes, shuffles, resumes, and runs its command.

Runs without pytest, in an environment that has windrow and what it needs alone. Prints the version of Python and the
order of the rows as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import windrow
from windrow.core.native_libraries import missing_libraries

ROWS, EPOCHS, STOP = 4_000, 2, 7
LIBRARIES = ("_decode.abi3.so", "_kernels.abi3.so")


def write_rows(folder: Path) -> None:
    """Write rows of numbers, of text and of lists to Parquet files."""
    items = [{"x": row, "text": f"row {row}", "list": [row] * (row % 3)} for row in range(ROWS)]
    windrow.from_items(items).write_parquet(folder, target_file_bytes="8KiB")


def pipeline(folder: Path) -> windrow.DatasetPipeline:
    """Two epochs of the rows, shuffled in windows."""
    pipe = windrow.read_parquet(folder, target_block_bytes="4KiB").window(blocks_per_window=8)
    return pipe.repeat(EPOCHS).random_shuffle_each_window(seed=7).options(executor="threads", progress=False)


def read_all(shard: windrow.Shard) -> list[int]:
    """The numbers of all rows left, after checking that the other columns came with them."""
    found: list[int] = []
    for epoch in shard.iter_epochs():
        for batch in epoch.iter_batches(batch_size=100, batch_format="pyarrow"):
            for row in batch.to_pylist():
                assert row == {"x": row["x"], "text": f"row {row['x']}", "list": [row["x"]] * (row["x"] % 3)}
                found.append(row["x"])
    return found


def resume(pipe: windrow.DatasetPipeline) -> list[int]:
    """The numbers of all rows, read by two iterators: the second goes on from a state of the first."""
    found: list[int] = []
    state: Any = None
    with pipe.iterator() as shard:
        for number, batch in enumerate(shard.iter_batches(batch_size=100)):
            found += batch["x"].tolist()
            if number == STOP:
                state = json.loads(json.dumps(shard.state_dict()))
                break
    with pipe.iterator(state_dict=state) as shard:
        return found + read_all(shard)


def run_command(*arguments: str) -> str:
    """What ``windrow`` prints, as it is installed beside this Python."""
    command = [str(Path(sys.executable).with_name("windrow")), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def loaded_libraries() -> set[str]:
    """Those of the compiled libraries that this process has mapped, from the package's own folder."""
    package = str(Path(windrow.__file__).parent)
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return {name for name in LIBRARIES for path in mapped if path.startswith(package) and path.endswith(name)}


def main() -> None:
    """Do everything in the working folder."""
    folder = Path("rows")
    write_rows(folder)
    pipe = pipeline(folder)
    with pipe.iterator() as shard:
        order = read_all(shard)
    first, second = order[:ROWS], order[ROWS:]
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert len({tuple(first), tuple(second), tuple(range(ROWS))}) == 3, "an epoch is not shuffled"
    assert resume(pipe) == order, "a resumed run has other rows"
    assert (missing_libraries(), loaded_libraries()) == ((), set(LIBRARIES))
    assert all(hasattr(windrow, name) for name in windrow.__all__)
    assert len(windrow.__all__) > 50
    assert run_command("--version") == f"windrow {windrow.__version__}\n"
    assert json.loads(run_command("inspect", str(folder), "--json"))["rows"] == ROWS
    print(json.dumps({"python": list(sys.version_info[:2]), "file": windrow.__file__, "order": order}))


if __name__ == "__main__":
    main()
