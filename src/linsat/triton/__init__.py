"""The fused GPU kernel: one Triton program per instance. Imports triton only when a problem is solved."""

from linsat.triton.backend import TritonBackend

__all__ = ["TritonBackend"]
