"""Builds wheels for every Python 3, with any compiler, without modules of earlier versions; see pyproject.toml."""

from __future__ import annotations

import shutil

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# C11 has `restrict`, and MSVC exports marked functions alone
MSVC_FLAGS = ["/O2", "/std:c11", "/W3"]


class CleanBuildPy(build_py):
    """setuptools packs all of build/lib, also modules that were deleted or renamed since an earlier build."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildLibraries(build_ext):
    """The compiled libraries are no Python modules: they have no function to initialise one."""

    def build_extension(self, ext: Extension) -> None:
        if self.compiler.compiler_type == "msvc":
            ext.extra_compile_args = MSVC_FLAGS
        super().build_extension(ext)

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return list(ext.export_symbols)


class AnyPythonWheel(bdist_wheel):
    """The compiled libraries are loaded through ctypes: they depend on the platform, not on the version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_ext": BuildLibraries, "build_py": CleanBuildPy, "bdist_wheel": AnyPythonWheel})
