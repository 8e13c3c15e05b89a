"""The tree of errors."""

from __future__ import annotations

import pickle

import pytest

from windrow.core import errors


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("PlanError", ValueError),
        ("SourceError", OSError),
        ("StateError", ValueError),
        ("TransformError", Exception),
        ("StallError", TimeoutError),
    ],
)
def test_every_error_is_a_windrow_error_and_what_python_would_raise(name: str, also: type[Exception]) -> None:
    kind = getattr(errors, name)
    error = pickle.loads(pickle.dumps(kind("part-3.parquet: gone")))
    assert isinstance(error, errors.WindrowError)
    assert isinstance(error, also)
    assert str(error) == "part-3.parquet: gone"
