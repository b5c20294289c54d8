"""The pages of one segment, in memory: where each lies, what of it is on disk only, and when that expires.

With it pages are forgotten without reading them, and a message is found by its position. Some 60 bytes per page, in one
array.

Owned by the loop thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

UNKNOWN = -1  # bytes that were not counted
_COLUMNS = 7


class PageIndex:
    """Pages by their number in the file, from 0 on.

    `unread` messages of a page are alive and on disk only, with `unread_bytes` bytes of bodies, or UNKNOWN. `earliest`
    and `latest` are those of its head (`PageHead`), so they count messages that were deleted since, too.
    """

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = array("q")

    def add(
        self, first: int, last: int, offset: int, unread: int, unread_bytes: int, earliest: int, latest: int
    ) -> None:
        """Add a page behind the others; `first` and `last` are positions."""
        self._rows.extend((first, last, offset, unread, unread_bytes, earliest, latest))

    def __len__(self) -> int:
        return len(self._rows) // _COLUMNS

    def first(self, page: int) -> int:
        return self._rows[_COLUMNS * page]

    def last(self, page: int) -> int:
        return self._rows[_COLUMNS * page + 1]

    def offset(self, page: int) -> int:
        return self._rows[_COLUMNS * page + 2]

    def unread(self, page: int) -> int:
        return self._rows[_COLUMNS * page + 3]

    def unread_bytes(self, page: int) -> int:
        return self._rows[_COLUMNS * page + 4]

    def earliest(self, page: int) -> int:
        return self._rows[_COLUMNS * page + 5]

    def latest(self, page: int) -> int:
        return self._rows[_COLUMNS * page + 6]

    def find(self, position: int) -> int:
        """Return the first page that does not end before this position; the number of pages if all do."""
        return bisect_left(range(len(self)), position, key=self.last)

    def find_offset(self, offset: int) -> int:
        """Return the first page that does not begin before this offset."""
        return bisect_left(range(len(self)), offset, key=self.offset)

    def next_unread(self, page: int) -> int:
        """Return this page or the first one behind it of which something is on disk only."""
        while page < len(self) and self.unread(page) == 0:
            page += 1
        return page

    def change_unread(self, page: int, count: int, body_bytes: int) -> None:
        """Messages of a page left memory, or came back or were deleted: then the numbers are negative."""
        at = _COLUMNS * page + 3
        self._rows[at] += count
        if self._rows[at] == 0:
            self._rows[at + 1] = 0
        elif self._rows[at + 1] != UNKNOWN:
            self._rows[at + 1] += body_bytes

    def clear(self, page: int) -> None:
        """Nothing of a page is on disk only any more."""
        at = _COLUMNS * page + 3
        self._rows[at] = self._rows[at + 1] = 0

    def clear_all(self) -> None:
        """The same of all pages."""
        for page in range(len(self)):
            self.clear(page)

    def set_bytes(self, page: int, body_bytes: int) -> None:
        """The bytes of what is on disk only of a page are known now."""
        self._rows[_COLUMNS * page + 4] = body_bytes
