"""Bridges to other libraries: LinSATNet's functions, cvxpy, scipy, HiGHS, Ray."""
