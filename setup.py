"""Builds the compiled modules: every plain .py file that has a .pxd beside it, through Cython.

All of HOT_MODULES is compiled or none of it: they share C-level declarations, so a half would not import.
WARREN_PURE=1 compiles nothing. Where compiling fails, the package is installed uncompiled (slower, same behaviour)
and says so; WARREN_REQUIRE_COMPILED=1 makes that failure fatal.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Only directives that keep the semantics of the plain .py; a module may relax more for itself in its first lines.
DIRECTIVES = {"language_level": 3, "embedsignature": False, "annotation_typing": False, "nonecheck": True}

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT / "src"
HOT_MODULES = [
    ".".join(declaration.relative_to(SOURCE).with_suffix("").parts)
    for declaration in sorted(SOURCE.rglob("*.pxd"))
    if declaration.with_suffix(".py").exists()
]
PURE = os.environ.get("WARREN_PURE", "") == "1"
REQUIRED = os.environ.get("WARREN_REQUIRE_COMPILED", "") == "1"


def extensions() -> list[Extension]:
    """The hot modules, not yet cythonized."""
    if PURE:
        return []
    flags = [] if sys.platform == "win32" else ["-O3"]
    return [
        Extension(module, ["src/" + module.replace(".", "/") + ".py"], extra_compile_args=flags)
        for module in HOT_MODULES
    ]


class BuildHotModules(build_ext):
    """Cythonizes late (metadata commands stay quick) and steps back to plain Python as a whole."""

    def finalize_options(self) -> None:
        if any(source.endswith(".py") for ext in self.distribution.ext_modules or [] for source in ext.sources):
            self.distribution.ext_modules = self.cythonized(self.distribution.ext_modules)
        super().finalize_options()

    def run(self) -> None:
        in_place = self.inplace  # setuptools clears it while it builds
        if in_place:
            self.remove_stale()
        try:
            super().run()
        except Exception as failure:  # distutils and the compilers raise many unrelated classes
            if REQUIRED:
                raise
            self.inplace = in_place
            self.step_back(failure)

    def cythonized(self, modules: list[Extension]) -> list[Extension]:
        try:
            from Cython.Build import cythonize

            return list(cythonize(modules, build_dir="build/cython", compiler_directives=DIRECTIVES, quiet=True))
        except Exception as failure:  # no Cython, or a Cython that cannot read this source
            if REQUIRED:
                raise
            self.warn_uncompiled(failure)
            return []

    def step_back(self, failure: BaseException) -> None:
        for ext in self.extensions:
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)  # an older build would not match the source
        self.extensions = []
        self.distribution.ext_modules = []
        self.warn_uncompiled(failure)

    def remove_stale(self) -> None:
        """Delete built files of modules that are no longer hot: Python would prefer them to their .py."""
        wanted = {Path(self.get_ext_fullpath(ext.name)).resolve() for ext in self.extensions}
        for suffix in EXTENSION_SUFFIXES:
            for built in SOURCE.rglob("*" + suffix):
                if built.resolve() not in wanted:
                    built.unlink()

    def warn_uncompiled(self, failure: BaseException) -> None:
        print(
            f"warrenmq: WARNING: the hot modules could not be compiled ({type(failure).__name__}: {failure}); "
            "installing them as plain Python: the same behaviour, slower",
            file=sys.stderr,
        )


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildHotModules})
