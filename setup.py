"""The native core; everything else about the package is in pyproject.toml.

The library is called through ctypes and uses nothing of Python, so one build serves every Python version. Where there
is no compiler the installation goes on without it, and the torch back end serves.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup

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
    ],
    extra_link_args=["-Wl,-s"] if sys.platform == "linux" else [],  # no symbols: they are of no use at run time
    libraries=["m", "pthread"],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[CORE], options={"bdist_wheel": {"py_limited_api": "cp310"}})
