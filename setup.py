"""Removes modules of earlier versions from build/ before a wheel is built; all else is in pyproject.toml."""

from __future__ import annotations

import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class CleanBuildPy(build_py):
    """setuptools packs all of build/lib, also modules that were deleted or renamed since an earlier build."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": CleanBuildPy})
