"""Digests of transforms, by which a write that goes on recognises what it has begun."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

import numpy as np

from windrow.core.source import Source
from windrow.core.user_functions import function_name
from windrow.pipeline.tasks.map_batches import MapBatches

__all__ = ["digest_stage", "find_stages"]


def find_stages(source: Source) -> Iterator[MapBatches]:
    """The transforms of all datasets that a source is derived from."""
    for parent in getattr(source, "parents", ()):
        yield from find_stages(parent.source)
        yield from parent.maps


def digest_stage(stage: MapBatches) -> str:
    """A digest of a transform: its options and arguments, and the code of its function, as far as they can be told."""
    options = (stage.name, stage.batch_format, stage.batch_size, stage.preserves_rows, stage.rng)
    arguments = (stage.fn_args, stage.fn_kwargs, stage.fn_constructor_args, stage.fn_constructor_kwargs)
    text = "\n".join([repr(options), *map(_describe_value, arguments), _describe_function(stage.fn)])
    return hashlib.sha256(text.encode()).hexdigest()


def _describe_value(value: Any) -> str:
    """Return what stays the same from one process to the next: a plain value, else only its type."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_describe_value(key)}: {_describe_value(each)}' for key, each in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_describe_value, value))}]"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if value is None or isinstance(value, (bool, int, float, str, bytes, np.generic, os.PathLike)):
        return repr(value)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _describe_function(fn: Any) -> str:
    if isinstance(fn, functools.partial):
        return f"{_describe_function(fn.func)} {_describe_value((fn.args, fn.keywords))}"
    if isinstance(fn, type):
        methods = sorted((name, value) for name, value in vars(fn).items() if hasattr(value, "__code__"))
        return f"{fn.__qualname__} " + " ".join(
            f"{name}: {_describe_code(each.__code__)}" for name, each in methods
        )
    code = getattr(fn, "__code__", None)
    if code is None:
        return f"{function_name(fn)} {_describe_value(fn)}"
    cells = [cell.cell_contents for cell in fn.__closure__ or ()]
    return " ".join([_describe_code(code), *map(_describe_value, (*cells, fn.__defaults__))])


def _describe_code(code: CodeType) -> str:
    text = repr((code.co_code, code.co_names, [_describe_constant(each) for each in code.co_consts]))
    return hashlib.sha256(text.encode()).hexdigest()


def _describe_constant(value: object) -> str:
    if isinstance(value, CodeType):
        return _describe_code(value)
    # the order of a set differs between processes
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
