"""The C libraries under the address and undefined-behaviour sanitizers: unit tests and mutated input."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.sanitized.building import PACKAGE, SOURCES, build, find_runtime, run

pytestmark = pytest.mark.skipif(
    find_runtime() is None, reason="no C compiler with the address sanitizer is installed"
)

SHORT = ["test_native", "test_nested_columns", "test_packed_rows", "test_pieces", "test_place_rows"]
SHORT = [f"shuffle/kernels/{name}" for name in SHORT]
SHORT += [
    f"io/parquet/test_{name}"
    for name in (
        "chunk_decoder",
        "decoded_columns",
        "decoding_pages",
        "nested_pages",
        "pages_with_nulls",
        "text_decoding",
    )
]
OTHERS = ["shuffle/kernels/test_bit_packing", "shuffle/kernels/test_group_rows"]
OTHERS += ["shuffle/order/test_best_fit", "shuffle/order/test_runs", "shuffle/order/test_permutation"]
OTHERS += [
    "shuffle/order/test_source_draws",
    "shuffle/order/test_step_balance",
    "shuffle/order/test_step_runs",
    "shuffle/order/test_token_budget",
]
OTHERS += ["io/parquet/test_footers", "io/parquet/test_block_reader", "io/parquet/test_row_ranges"]
# without Python's fault handler, whose report would replace that of the sanitizer
PYTEST = [
    "-m",
    "pytest",
    "-q",
    "-p",
    "tests.sanitized.loading",
    "-p",
    "no:faulthandler",
    "-p",
    "no:cacheprovider",
    # what the sanitizer writes is kept
    "--capture=sys",
]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    build(folder)
    return folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("names", "profile"),
    [
        pytest.param(SHORT, "sanitized", marks=pytest.mark.nightly),
        pytest.param(SHORT, "ci", marks=pytest.mark.nightly),
        pytest.param(OTHERS, "ci", marks=pytest.mark.nightly),
    ],
    ids=["few examples", "short", "others"],
)
def test_kernel_tests_pass(libraries: Path, names: list[str], profile: str) -> None:
    files = [f"tests/{name}.py" for name in names]
    done = run(libraries, [*PYTEST, "--hypothesis-profile", profile, "--timeout", "500", *files], 550)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-6_000:]


def try_seeds(libraries: Path, first: int, count: int, seconds: float) -> None:
    done = run(libraries, ["-m", "tests.sanitized.mutations", str(first), str(count)], seconds)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-6_000:]
    assert done.stdout.endswith(f"all {count}\n")


def test_some_mutations(libraries: Path) -> None:
    try_seeds(libraries, 0, 400, 170)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("part", range(10))
def test_million_mutations(libraries: Path, part: int) -> None:
    try_seeds(libraries, 1_000 + part * 100_000, 100_000, 3_500)


@pytest.mark.parametrize(
    ("module", "sound", "fault", "report"),
    [
        (
            "windrow.shuffle.kernels._kernels",
            "ends[row] = (WORD)bytes;",
            "ends[row + 1] = (WORD)bytes;",
            "heap-buffer-overflow",
        ),
        (
            "windrow.io.parquet._decode",
            "return (int32_t)(value >> 1) ^ -(int32_t)(value & 1);",
            "return (int32_t)(value >> 1) * 2147483647 ^ -(int32_t)(value & 1);",
            "signed integer overflow",
        ),
    ],
    ids=["address", "undefined behaviour"],
)
@pytest.mark.nightly
def test_planted_fault_is_reported(tmp_path: Path, module: str, sound: str, fault: str, report: str) -> None:
    # of all folders, since a library includes headers of others than its own
    package = tmp_path / "package"
    for path in PACKAGE.rglob("*.[ch]"):
        copy = package / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    changed = package / SOURCES[module].relative_to(PACKAGE)
    (holder,) = [path for path in changed.iterdir() if sound in path.read_text()]
    text = holder.read_text()
    assert text.count(sound) == 1
    holder.write_text(text.replace(sound, fault))
    build(tmp_path, package)
    done = run(tmp_path, ["-m", "tests.sanitized.mutations", "0", "200"])
    assert done.returncode != 0
    assert report in done.stderr
