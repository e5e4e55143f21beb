"""The fused CPU kernel: the whole iteration of an instance in C, compiled when the package is built."""

from linsat.backends.cpu_kernel.backend import KernelBackend

__all__ = ["KernelBackend"]
