"""Stands in for the `cython` module where Cython is not installed, for what this room asks of it."""

from contextlib import nullcontext


class cython:  # noqa: N801
    compiled = False
    nogil = nullcontext()
