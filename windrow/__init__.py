"""windrow: a streaming dataset engine with windowed per-epoch shuffle and exactly-once shards.

>>> import pyarrow as pa, pyarrow.parquet as pq, windrow
>>> pq.write_table(pa.table({"x": [0, 1, 2, 3, 4, 5]}), "numbers.parquet")
>>> pipe = windrow.read_parquet("numbers.parquet").repeat(2).random_shuffle_each_window(seed=7)
>>> for batch in pipe.iter_batches(batch_size=3):
...     print(len(batch["x"]))
3
3
3
3
"""

import importlib as _importlib
import logging as _logging
import os as _os
import typing as _typing

__version__ = "0.1.0"

# without a handler of the program's own, nothing is printed
_logging.getLogger(__name__).addHandler(_logging.NullHandler())


def _read_stub() -> dict[str, str]:
    """The module of each public name, as the stub beside this file states it for type checkers too.

    It is read as text: to parse it would take as long as the rest of this module.
    """
    modules, module = {}, ""
    with open(_os.path.join(_os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as stub:
        for line in stub:
            if line.startswith("from "):
                module = line.split()[1]
            for part in line.split(" as ")[1:]:
                modules[part.partition(",")[0].strip()] = module
    return modules


# Each name is imported on first use: a worker needs few of these modules, and importing all of them takes as long as
# importing Arrow.
_MODULES = _read_stub()

__all__ = sorted([*_MODULES, "__version__"])  # noqa: PLE0605


def __getattr__(name: str) -> _typing.Any:
    if name not in _MODULES:
        from windrow.core.missing_names import describe_missing_function

        raise AttributeError(describe_missing_function(name, __all__))
    found = globals()[name] = getattr(_importlib.import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
