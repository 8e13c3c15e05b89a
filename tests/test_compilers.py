"""The C sources compile without a warning for macOS and Windows too, as far as compilers on Linux can tell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.sanitized.building import FOLDER_VARIABLE, SOURCES

COMPILER_HEADER = REPOSITORY / "windrow" / "core" / "_compiler.h"
# what C11 does not have
EXTENSIONS = re.compile(
    r"__attribute__|__builtin|__extension__|__int128|__declspec|__asm|\btypeof\b|\bssize_t\b|\blong\b|#pragma|<\w+mmintrin"
)
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wvla", "-Wpointer-arith", "-Werror"]
CLANG = [*FLAGS, "-Wgnu"]
# The parts of headers that the sources use: the systems' own are not here.
STRING = """
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t size);
void *memset(void *to, int value, size_t size);
"""
INTRINSICS = """
unsigned char _BitScanForward64(unsigned long *index, unsigned __int64 mask);
unsigned __int64 __umulh(unsigned __int64 a, unsigned __int64 b);
void __prefetch(const void *at);
"""
# The compiler of Windows is not here either. Clang takes its branch of the header if it denies its name.
AS_MSVC = ["-U__clang__", "-fms-extensions", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
TARGETS = {
    "arm64-apple-macos11": CLANG,
    "x86_64-apple-macos11": CLANG,
    "aarch64-linux-gnu": CLANG,
    "x86_64-pc-windows-msvc": CLANG,
    "x86_64-pc-windows-msvc, as MSVC": AS_MSVC,
    "aarch64-pc-windows-msvc, as MSVC": AS_MSVC,
}
FILES = [path for folder in SOURCES.values() for path in sorted(folder.glob("*.[ch]"))]


def _compile(*command: str | Path) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _sources() -> list[Path]:
    return [path for path in FILES if path.suffix == ".c"]


def test_extensions_of_compilers_are_in_one_header() -> None:
    assert len(FILES) > 15
    code = {
        path: re.sub(r"/\*.*?\*/|\"[^\"]*\"", "", path.read_text("utf-8"), flags=re.DOTALL) for path in FILES
    }
    assert {
        path.name: EXTENSIONS.findall(text) for path, text in code.items() if EXTENSIONS.search(text)
    } == {}
    assert EXTENSIONS.search(COMPILER_HEADER.read_text("utf-8"))


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs GCC")
def test_gcc_finds_only_c11(tmp_path: Path) -> None:
    for source in _sources():
        _compile("gcc", *FLAGS, "-fPIC", "-c", "-o", tmp_path / "out.o", source)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("clang") is None, reason="needs Clang")
@pytest.mark.parametrize("target", TARGETS)
def test_clang_compiles_for_other_systems(target: str, tmp_path: Path) -> None:
    (tmp_path / "string.h").write_text(STRING, encoding="utf-8")
    (tmp_path / "intrin.h").write_text(INTRINSICS, encoding="utf-8")
    options: list[str | Path] = [
        f"--target={target.partition(',')[0]}",
        "-ffreestanding",
        "-I",
        tmp_path,
        *TARGETS[target],
    ]
    for source in _sources():
        _compile("clang", *options, "-S", "-o", tmp_path / "out.s", source)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("x86_64-w64-mingw32-gcc") is None, reason="needs MinGW-w64")
def test_mingw_builds_libraries_that_export_what_python_calls(tmp_path: Path) -> None:
    for module, folder in SOURCES.items():
        library, sources = tmp_path / f"{module}.dll", sorted(folder.glob("*.c"))
        _compile("x86_64-w64-mingw32-gcc", *FLAGS, "-shared", "-o", library, *sources)
        text = "".join(path.read_text("utf-8") for path in folder.glob("*.[ch]"))
        called = re.findall(r"^EXPORT\w* \w+ \*?(windrow_\w+)\(", text, flags=re.MULTILINE)
        assert called
        listed = subprocess.run(
            ["x86_64-w64-mingw32-objdump", "-p", str(library)], capture_output=True, text=True, check=True
        )
        assert set(called) == set(re.findall(r"\bwindrow_\w+", listed.stdout))


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("clang") is None, reason="needs Clang")
def test_what_clang_builds_passes_the_tests_of_the_kernels(tmp_path: Path) -> None:
    for module, folder in SOURCES.items():
        options: list[str | Path] = [
            "-O3",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            "-o",
            tmp_path / f"{module}.so",
        ]
        _compile("clang", *options, *sorted(folder.glob("*.c")))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.sanitized.loading",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-m", "not ray and not cluster and not nightly", "tests/shuffle/kernels", "tests/io/parquet"]
    environment = {**os.environ, FOLDER_VARIABLE: str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-10_000:]
