"""Stands in for the `cython` module where Cython is not installed, for the one question that is asked of it."""


class cython:  # noqa: N801
    compiled = False
