"""Turns operators of the package around, one at a time, and lists those that no test notices.

``python -m tests.plant_faults --count 200 --seed 1 windrow/shuffle windrow/pipeline`` works on a copy of the
repository. For each fault it runs the tests of the module, then those of its folder, then the laws, and ends at the
first that fails. Faults in type annotations, asserts and messages of logs are left out.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LAWS = "tests/laws"
SECONDS = 900
OTHERS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
}


@dataclass(frozen=True)
class Fault:
    """An operator of a file, at an offset in its text, and the one that replaces it."""

    path: str
    line: int
    start: int
    before: str
    after: str

    def plant(self, text: str) -> str:
        """Return the text with the fault in it."""
        return text[: self.start] + self.after + text[self.start + len(self.before) :]


def find_faults(path: str, text: str) -> Iterator[Fault]:
    """Every operator of a module that can be turned around."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()

    def between(left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[Fault]:
        before, after = OTHERS[type(operator)]
        assert left.end_lineno is not None
        assert left.end_col_offset is not None
        first = starts[left.end_lineno - 1] + left.end_col_offset
        last = starts[right.lineno - 1] + right.col_offset
        at = raw.find(before.encode(), first, last)
        if at >= 0 and b"#" not in raw[first:last]:
            yield Fault(path, left.end_lineno, len(raw[:at].decode()), before, after)

    for node in _code(ast.parse(text)):
        if isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from between(left, right, node.op)
        elif isinstance(node, ast.BinOp) and type(node.op) in OTHERS:
            yield from between(node.left, node.right, node.op)
        elif isinstance(node, ast.Compare):
            for left, right, operator in zip(
                [node.left, *node.comparators], node.comparators, node.ops, strict=False
            ):
                yield from between(left, right, operator)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but annotations, asserts and calls of loggers."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_log = isinstance(child, ast.Call) and ast.unparse(child.func).startswith("logger.")
            if isinstance(child, ast.AST) and not is_log and not isinstance(child, ast.Assert):
                yield child
                yield from _code(child)


def find_tests(path: str) -> list[str]:
    """The tests to run for a module, in turn: its own, those of its folders, the laws."""
    module = Path(path)
    folder = Path("tests", *module.parts[1:-1])
    own = folder / f"test_{module.stem}.py"
    steps = [str(own)] if (REPOSITORY / own).exists() else []
    while not any((REPOSITORY / folder).glob("test_*.py")) and folder != Path("tests"):
        folder = folder.parent
    return [*steps, *([str(folder)] if folder != Path("tests") else []), LAWS]


def is_noticed(copy: Path, fault: Fault) -> str:
    """The tests that fail on a fault; empty if none does."""
    target = copy / fault.path
    text = target.read_text(encoding="utf-8")
    target.write_text(fault.plant(text), encoding="utf-8")
    try:
        for tests in find_tests(fault.path):
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", tests]
            try:
                done = subprocess.run(command, cwd=copy, capture_output=True, timeout=SECONDS, check=False)
            except subprocess.TimeoutExpired:
                return f"{tests}, which did not end"
            if done.returncode not in (0, 5):
                return tests
        return ""
    finally:
        target.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", default=["windrow"])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    faults = [
        fault
        for folder in given.folders
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        for fault in find_faults(str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8"))
    ]
    chosen = random.Random(given.seed).sample(faults, min(given.count, len(faults)))
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        ignored = shutil.ignore_patterns(".venv*", ".git", "build", "__pycache__", ".hypothesis", ".bench")
        shutil.copytree(REPOSITORY, copy, ignore=ignored)
        for fault in chosen:
            noticed = is_noticed(copy, fault)
            missed += not noticed
            print(
                f"{fault.path}:{fault.line}: {fault.before} -> {fault.after}: {noticed or 'NOT NOTICED'}",
                flush=True,
            )
    print(f"{len(chosen) - missed} of {len(chosen)} noticed")


if __name__ == "__main__":
    main()
