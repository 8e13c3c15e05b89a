"""The names that modules of the standard library have on a system, as typeshed, which mypy brings, lists them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

__all__ = ["SYSTEMS", "find_missing", "is_missing"]

SYSTEMS = {"darwin": "macOS", "win32": "Windows"}


@cache
def find_missing(module: str, system: str) -> frozenset[str]:
    """The names that a module has on Linux, and not on another system; none for modules of others."""
    return _find_names(module, "linux") - _find_names(module, system)


@cache
def _find_names(module: str, system: str) -> frozenset[str]:
    """The names of a module on a system; none if it is missing there."""
    stub = _find_stub(module)
    return frozenset() if stub is None else frozenset(_names(ast.parse(stub.read_text("utf-8")).body, system))


def _find_stub(module: str) -> Path | None:
    # not by importing mypy, which takes a second
    found = find_spec("mypy")
    assert found is not None, "mypy is required"
    assert found.origin is not None
    base = Path(found.origin).parent / "typeshed" / "stdlib" / module.replace(".", "/")
    stubs = (base / "__init__.pyi", base.with_name(f"{base.name}.pyi"))
    return next((stub for stub in stubs if stub.exists()), None)


def _names(body: list[ast.stmt], system: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.If):
            verdict = _holds(node.test, system)
            if verdict is not False:
                yield from _names(node.body, system)
            if verdict is not True:
                yield from _names(node.orelse, system)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname for alias in node.names if alias.asname is not None)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _holds(test: ast.expr, system: str) -> bool | None:
    """Whether a condition on `sys.platform` or `sys.version_info` holds; None for others."""
    if isinstance(test, ast.BoolOp):
        found = [_holds(value, system) for value in test.values]
        decides = isinstance(test.op, ast.Or)
        if decides in found:
            return decides
        return None if None in found else not decides
    if not isinstance(test, ast.Compare):
        return None
    left, (operator,), (right,) = ast.unparse(test.left), test.ops, test.comparators
    value = ast.literal_eval(right)
    if left == "sys.platform":
        return (system == value) == isinstance(operator, ast.Eq)
    if left == "sys.version_info":
        return (sys.version_info[: len(value)] >= value) == isinstance(operator, ast.GtE)
    return None


def is_missing(module: str, system: str) -> bool:
    """Whether a system lacks a module that Linux has."""
    return bool(_find_names(module, "linux")) and not _find_names(module, system)
