"""Publisher confirms: what waits for the broker's word, and how a publisher hears it.

A confirmation costs one small object; a lock, a future or a list is made when somebody waits for it. The ledger numbers
publishes as the broker does, from 1 on each new link; the tags that users see count on over links.

Who holds the connection's lock may touch the ledger and settle confirmations; waking those who wait is done by the
connection's loop after the lock is released. A confirmation may be waited for by any thread, and by any event loop.

Compiled when the package is built (confirms.pxd).
"""

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from warrenmq.client.errors import ClientError, Misuse, Nacked, Unroutable

if TYPE_CHECKING:
    from warrenmq.client.delivery import Returned
    from warrenmq.client.engine.publish_waits import PublishWaits

log = logging.getLogger("warrenmq.client")

_PENDING = 0
_DONE = 1
_FAILED = 2
_UNCONFIRMED = 3

# What has to be kept of a publish to send it again, or to know it when it comes back:
# exchange, routing key, content header, body, mandatory.
Message: TypeAlias = tuple[str, str, bytes, bytes, bool]


class Confirmation:
    """The broker's word on one publish: `result` waits for it (or `await`), and raises where it is not a yes.

    Outside confirm mode the broker sends no confirms: waiting for one raises Misuse at once. The tag is 0 then.
    """

    __slots__ = ("_error", "_waiters", "_waits", "message", "state", "tag")

    def __init__(self, waits: "PublishWaits | None" = None, tag: int = 0) -> None:
        self._waits = waits
        self._error: ClientError | None = None
        self._waiters: list[Callable[[], object]] | None = None
        self.message: Message | None = None
        self.state = _PENDING
        self.tag = tag

    def done(self) -> bool:
        """Whether `result` returns or raises without waiting."""
        return self.state != _PENDING

    def result(self, timeout: float | None = None) -> None:
        """Wait for the broker's yes; raises Nacked, Unroutable, PublishLost, or CallTimedOut."""
        if self.state == _PENDING:
            self._waits.block(self, timeout)  # type: ignore[union-attr]
        if self._error is not None:
            raise self._error
        self._require_confirming()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Wait for the broker's word; gives what `result` would raise, except for a time-out, which it raises."""
        if self.state == _PENDING:
            self._waits.block(self, timeout)  # type: ignore[union-attr]
        self._require_confirming()
        return self._error

    def add_done_callback(self, callback: Callable[["Confirmation"], object]) -> None:
        """Call it with this confirmation when the word has come: on the channel's worker, or at once if it is there."""
        self._require_confirming()
        if self.state == _PENDING and self._waits.call_when_done(self, callback):  # type: ignore[union-attr]
            return
        try:
            callback(self)
        except Exception as error:  # the user's code
            if self._waits is not None:
                self._waits.report("confirm callback", error)
            else:
                log.exception("a callback of %r raised", self)

    def __await__(self) -> Generator[Any, None, None]:
        if self.state == _PENDING:
            yield from self._waits.wait(self).__await__()  # type: ignore[union-attr]
        if self._error is not None:
            raise self._error
        self._require_confirming()

    def _require_confirming(self) -> None:
        if self.state == _UNCONFIRMED:
            raise Misuse(
                "the channel was not in confirm mode, so no confirm comes for this message: "
                "call channel.confirm_select() before publishing"
            )

    def __repr__(self) -> str:
        if self.state == _UNCONFIRMED:
            return "<Confirmation: unconfirmed>"
        state = "waiting" if self.state == _PENDING else "confirmed" if self._error is None else repr(self._error)
        return f"<Confirmation {self.tag}: {state}>"

    # -- the connection's own: under its lock ------------------------------------------------------------------------

    def add_waiter(self, waiter: Callable[[], object]) -> bool:
        """Have it called, on the loop, when the word has come; False: it is there already."""
        if self.state != _PENDING:
            return False
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        return True

    def settle(self, error: ClientError | None, woken: list["Confirmation"]) -> None:
        """The word has come; puts itself into `woken` if somebody waits for it."""
        if self.state == _PENDING:
            self.state = _DONE if error is None else _FAILED
            self._error = error
            self.message = None
            if self._waiters is not None:
                woken.append(self)

    # -- on the loop, after the lock is released ---------------------------------------------------------------------

    def wake(self) -> None:
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            waiter()


def make_unconfirmed() -> Confirmation:
    """What a publish outside confirm mode returns."""
    confirmation = Confirmation()
    confirmation.state = _UNCONFIRMED
    return confirmation


class Unconfirmed:
    """The publishes of one channel that have no word yet, by the number that the broker gives them on this link."""

    __slots__ = ("_barriers", "_lowest", "_next", "_offset", "_resent", "_waiting", "_waits", "bad")

    def __init__(self, waits: "PublishWaits") -> None:
        self._waits = waits
        self._waiting: dict[int, Confirmation] = {}
        self._barriers: list[tuple[int, Confirmation]] = []
        self._lowest = 1  # nothing below it waits
        self._next = 1
        self._offset = 0  # seen tag = number on this link + offset
        self._resent = 0  # numbers up to here are of publishes that an earlier link left behind, and keep their tags
        self.bad: ClientError | None = None  # the first failure since `take_bad`

    @property
    def next_tag(self) -> int:
        """The tag that the next publish gets."""
        return self._next + self._offset

    @property
    def count(self) -> int:
        return len(self._waiting)

    def has_one(self) -> bool:
        """Whether just one publish waits for its word."""
        return len(self._waiting) == 1

    def add(self, message: Message | None) -> Confirmation:
        """Number a publish."""
        number = self._next
        self._next = number + 1
        confirmation = Confirmation.__new__(Confirmation)
        confirmation._waits = self._waits
        confirmation._error = None
        confirmation._waiters = None
        confirmation.message = message
        confirmation.state = _PENDING
        confirmation.tag = number + self._offset
        self._waiting[number] = confirmation
        return confirmation

    def settle(self, number: int, multiple: bool, is_ack: bool, woken: list[Confirmation]) -> int:
        """The broker's word on one publish, or on all up to it; gives how many it was about."""
        waiting = self._waiting
        count = 0
        if not multiple:
            confirmation = waiting.pop(number, None)
            if confirmation is not None:
                confirmation.settle(None if is_ack else self._refusal(confirmation), woken)
                count = 1
        else:
            if number == 0 or number >= self._next:
                number = self._next - 1
            for each in range(self._lowest, number + 1):
                confirmation = waiting.pop(each, None)
                if confirmation is not None:
                    confirmation.settle(None if is_ack else self._refusal(confirmation), woken)
                    count += 1
            if number >= self._lowest:
                self._lowest = number + 1
        if self._barriers:
            self._lift_barriers(woken)
        return count

    def heard_tags(self, number: int, multiple: bool) -> list[tuple[int, bool]]:
        """What a listener is told for a word on that number: tag and multiple. Ask before `settle`."""
        if number > self._resent or not self._resent:
            return [(number + self._offset, multiple)]
        numbers = range(self._lowest, number + 1) if multiple else (number,)
        return [(self._waiting[each].tag, False) for each in numbers if each in self._waiting]

    def fail_returned(self, returned: "Returned", header: bytes, woken: list[Confirmation]) -> bool:
        """A mandatory message came back: the first that waits and looks the same has failed."""
        number = self._number_of(returned.exchange, returned.routing_key, returned.body, header)
        if number == 0:  # a broker may have changed the header
            number = self._number_of(returned.exchange, returned.routing_key, returned.body, None)
        if number == 0:
            return False
        self._waiting.pop(number).settle(self._note(Unroutable(returned)), woken)
        if self._barriers:
            self._lift_barriers(woken)
        return True

    def add_barrier(self) -> Confirmation:
        """Something to wait for that comes when everything published so far has its word."""
        barrier = Confirmation(self._waits, self.next_tag - 1)
        if self._waiting:
            self._barriers.append((self._next - 1, barrier))
        else:
            barrier.state = _DONE
        return barrier

    def take_bad(self) -> ClientError | None:
        """The first failure since the last time this was asked."""
        bad, self.bad = self.bad, None
        return bad

    def fail_all(self, error: ClientError, woken: list[Confirmation]) -> int:
        """The link, or the channel, is gone, and with it the broker's word; gives how many that was."""
        count = len(self._waiting)
        if count:
            self._note(error)
        for confirmation in self._waiting.values():
            confirmation.settle(error, woken)
        self._waiting.clear()
        self._lift_barriers(woken)
        self._offset += self._next - 1
        self._next = self._lowest = 1
        self._resent = 0
        return count

    def renumber(self) -> list[Confirmation]:
        """A new link: what waits is to be sent again, in this order, under new numbers; tags stay as they are."""
        before = self._waiting
        kept = list(before.values())
        self._barriers = [(sum(1 for each in before if each <= upto), barrier) for upto, barrier in self._barriers]
        self._waiting = dict(enumerate(kept, 1))
        self._offset = self.next_tag - 1 - len(kept)
        self._resent = len(kept)
        self._next = len(kept) + 1
        self._lowest = 1
        return kept

    def _number_of(self, exchange: str, routing_key: str, body: bytes, header: bytes | None) -> int:
        for number, confirmation in self._waiting.items():
            message = confirmation.message
            if (
                message is not None
                and message[4]
                and message[3] == body
                and message[1] == routing_key
                and message[0] == exchange
                and (header is None or message[2] == header)
            ):
                return number
        return 0

    def _lift_barriers(self, woken: list[Confirmation]) -> None:
        while self._lowest < self._next and self._lowest not in self._waiting:
            self._lowest += 1
        for upto, barrier in self._barriers:
            if self._lowest > upto or not self._waiting:
                barrier.settle(None, woken)
        self._barriers = [each for each in self._barriers if each[1].state == _PENDING]

    def _refusal(self, confirmation: Confirmation) -> ClientError:
        return self._note(Nacked(f"the broker refused the message with the tag {confirmation.tag}"))

    def _note(self, error: ClientError) -> ClientError:
        if self.bad is None:
            self.bad = error
        return error
