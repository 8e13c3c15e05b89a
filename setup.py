"""Tags wheels for every Python 3, and removes modules of earlier versions before; all else is in pyproject.toml."""

from __future__ import annotations

import shutil

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class CleanBuildPy(build_py):
    """setuptools packs all of build/lib, also modules that were deleted or renamed since an earlier build."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class AnyPythonWheel(bdist_wheel):
    """The compiled libraries are loaded through ctypes: they depend on the platform, not on the version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_py": CleanBuildPy, "bdist_wheel": AnyPythonWheel})
