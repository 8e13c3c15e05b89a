"""Properties of the package as a whole: its public names, and the cost of importing it."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

import windrow
from tests.conftest import REPOSITORY

HEAVY = {
    "dask",
    "datasets",
    "h5py",
    "matplotlib",
    "numba",
    "pandas",
    "polars",
    "pyspark",
    "ray",
    "rich",
    "s3fs",
    "scipy",
    "tensorflow",
    "torch",
    "zarr",
}

WITHOUT_RAY_AND_TORCH = (
    "tests/shuffle",
    "tests/pipeline/plan",
    "tests/pipeline/coordinator",
    "tests/pipeline/checkpoint",
)


def _public_names() -> list[str]:
    # subpackages become attributes when they are imported
    return sorted(
        name
        for name in dir(windrow)
        if not name.startswith("_") and not isinstance(getattr(windrow, name), types.ModuleType)
    )


def _documented() -> Iterator[tuple[str, Any]]:
    for name in _public_names():
        value = getattr(windrow, name)
        yield name, value
        if inspect.isclass(value) and not issubclass(value, Exception):
            for member, method in vars(value).items():
                if not member.startswith("_") and isinstance(
                    method, (types.FunctionType, property, classmethod, staticmethod)
                ):
                    yield f"{name}.{member}", method


DOCUMENTED = dict(_documented())
WITH_EXAMPLES = [
    name
    for name, value in DOCUMENTED.items()
    if "." not in name and (inspect.isfunction(value) or inspect.isclass(value))
    if not (inspect.isclass(value) and issubclass(value, Exception))
]


def test_all_is_sorted_and_lists_the_public_names() -> None:
    assert windrow.__all__ == sorted(set(windrow.__all__))
    assert [name for name in windrow.__all__ if not name.startswith("_")] == _public_names()


def test_every_error_is_public() -> None:
    from windrow.core import errors

    assert set(errors.__all__) <= set(windrow.__all__)


def test_import_loads_no_heavy_libraries() -> None:
    """Run in a fresh interpreter, so that imports of other tests do not count."""
    every = "[getattr(windrow, name) for name in windrow.__all__]"
    code = (
        f"import sys; old = set(sys.modules); import windrow; {every}; print(*sorted(set(sys.modules) - old))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in result.stdout.split()}
    assert "windrow" in imported
    assert imported & HEAVY == set()


@pytest.mark.nightly
def test_low_rooms_are_tested_without_ray_and_torch() -> None:
    """Run in a fresh interpreter: a reader can try the arithmetic of windrow alone, in seconds."""
    arguments = ["--collect-only", "-qq", "-p", "no:cacheprovider", *WITHOUT_RAY_AND_TORCH]
    code = f"import sys, pytest; print(int(pytest.main({arguments})), *sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    ended, *imported = result.stdout.splitlines()[-1].split()
    assert ended == "0"
    assert "windrow" in imported
    assert {"ray", "torch"}.isdisjoint(imported)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_names_are_documented(name: str) -> None:
    assert (inspect.getdoc(DOCUMENTED[name]) or "").strip()


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_public_names_have_a_running_example(name: str) -> None:
    """The example is in its docstring or, for a class, in that of one of its methods."""
    documents = [value.__doc__ or "" for key, value in DOCUMENTED.items() if key.partition(".")[0] == name]
    assert any(">>> " in document for document in documents)
