"""The names of the package: complete, and imported on first use."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import windrow


def modules_after(code: str, *watched: str) -> list[str]:
    """Return the modules out of ``watched`` that a fresh interpreter imports when it runs ``code``."""
    program = f"import sys; {code}; print(*(set({watched!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return sorted(done.stdout.split())


def test_stub_names_everything_once() -> None:
    """What type checkers see, by a parser of Python, is what the package reads from the same text."""
    tree = ast.parse(Path(windrow.__file__).with_suffix(".pyi").read_text())
    statements = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in statements for alias in node.names)
    seen = [(alias.name, node.module) for node in statements for alias in node.names]
    assert len(seen) == len(dict(seen))
    assert len(statements) == len({node.module for node in statements})
    assert sorted([*dict(seen), "__version__"]) == windrow.__all__
    for name, module in seen:
        assert getattr(windrow, name) is getattr(sys.modules[str(module)], name)
    assert set(windrow.__all__) <= set(dir(windrow))


def test_star_imports_every_name() -> None:
    found: dict[str, object] = {}
    exec("from windrow import *", found)
    assert found.keys() - {"__builtins__"} == set(windrow.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'windrow' has no attribute 'read_parket'"):
        windrow.read_parket  # type: ignore[attr-defined] # noqa: B018


def test_worker_imports_no_sources_or_adapters() -> None:
    seen = modules_after(
        "import windrow.pipeline.executors.ray.ray_task",
        "windrow.dataset",
        "windrow.io.sinks",
        "torch",
        "pandas",
    )
    assert seen == []


def test_reading_footers_imports_no_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    code = (
        "import pyarrow as pa, pyarrow.parquet as pq, windrow; "
        f"pq.write_table(pa.table({{'x': pa.nulls(3, pa.int64())}}), {str(tmp_path / 'x.parquet')!r}); "
        f"windrow.read_parquet({str(tmp_path)!r}).repeat(1).explain()"
    )
    assert modules_after(code, "pandas", "torch") == []
