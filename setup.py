"""The native core; everything else about the package is in pyproject.toml.

The library is called through ctypes and uses nothing of Python, so one build serves every Python version. Where there
is no compiler the installation goes on without it, and the torch back end serves. It needs gcc or clang: on Windows
mingw-w64, which the build asks for.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WINDOWS = sys.platform == "win32"


class BuildCore(build_ext):
    """A library that is no module of Python: it exports what its source says."""

    def initialize_options(self):
        super().initialize_options()
        self.compiler = "mingw32" if WINDOWS else None  # Microsoft's does not know gcc's vectors

    def get_export_symbols(self, ext):
        return []


CORE = Extension(
    "linsat.native._core",
    sources=["src/linsat/native/core.c"],
    depends=sorted(str(path) for path in Path("src/linsat/native").glob("*.[ch]")),
    extra_compile_args=[
        "-O3",
        "-std=gnu11",
        "-fvisibility=hidden",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-Wno-psabi",
        "-g0",  # debug information would be three quarters of the file
        # No exceptions pass through it; those of Windows are part of how it unwinds any stack.
        *([] if WINDOWS else ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]),
        # gcc's vectors on the stack of Windows: see platform.h.
        *(["-DLINSAT_UNALIGNED_MOVES", "-Wa,-muse-unaligned-vector-move"] if WINDOWS else []),
    ],
    extra_link_args=["-Wl,-s"] if sys.platform == "linux" else [],  # no symbols: they are of no use at run time
    libraries=[] if WINDOWS else ["m", "pthread"],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[CORE], cmdclass={"build_ext": BuildCore}, options={"bdist_wheel": {"py_limited_api": "cp310"}})
