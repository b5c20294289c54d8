"""A stand-in for the `cython` module where Cython is not installed: what compiled modules use of it."""

from contextlib import nullcontext


class cython:  # noqa: N801
    compiled = False
    nogil = nullcontext()
