"""The pages of one segment, in memory: where each lies, what of it is on disk only, and when it expires.

It lets pages be deleted without reading them, and finds messages by position. About 60 bytes per page, in one array.

Owned by the loop thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

UNKNOWN = -1  # bytes that were not counted
_COLUMNS = 7


class PageIndex:
    """Pages by their number in the file, starting at 0.

    `unread` live messages of a page are on disk only, with `unread_bytes` bytes of bodies, or UNKNOWN. `earliest` and
    `latest` are those of its head (`PageHead`), so they still count deleted messages.
    """

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows = array("q")

    def add(
        self, first: int, last: int, offset: int, unread: int, unread_bytes: int, earliest: int, latest: int
    ) -> None:
        """Append a page; `first` and `last` are positions."""
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
        """Return the first page that ends at this position or later; the number of pages if there is none."""
        return bisect_left(range(len(self)), position, key=self.last)

    def find_offset(self, offset: int) -> int:
        """Return the first page at this offset or later."""
        return bisect_left(range(len(self)), offset, key=self.offset)

    def next_unread(self, page: int) -> int:
        """Return this page or the next one with unread messages."""
        while page < len(self) and self.unread(page) == 0:
            page += 1
        return page

    def change_unread(self, page: int, count: int, body_bytes: int) -> None:
        """Add to the unread count of a page; negative when messages were read or deleted."""
        at = _COLUMNS * page + 3
        self._rows[at] += count
        if self._rows[at] == 0:
            self._rows[at + 1] = 0
        elif self._rows[at + 1] != UNKNOWN:
            self._rows[at + 1] += body_bytes

    def clear(self, page: int) -> None:
        """Mark a page as having nothing unread."""
        at = _COLUMNS * page + 3
        self._rows[at] = self._rows[at + 1] = 0

    def clear_all(self) -> None:
        """Mark all pages as having nothing unread."""
        for page in range(len(self)):
            self.clear(page)

    def set_bytes(self, page: int, body_bytes: int) -> None:
        """Set the bytes of a page's unread messages."""
        self._rows[_COLUMNS * page + 4] = body_bytes
