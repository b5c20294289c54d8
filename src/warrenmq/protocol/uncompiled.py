"""Stands in for the `cython` module where Cython is not installed, for what is asked of it."""

from collections.abc import Callable
from typing import TypeVar

Class = TypeVar("Class", bound=type)


def _as_it_is(decorated: Class) -> Class:
    return decorated


class cython:  # noqa: N801
    compiled = False
    cclass = no_gc = staticmethod(_as_it_is)

    @staticmethod
    def freelist(size: int) -> Callable[[Class], Class]:
        return _as_it_is
