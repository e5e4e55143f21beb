"""The native core: everything about an instance in C, compiled when the package is built; linsat.h is its interface."""
