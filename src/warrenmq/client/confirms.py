"""Publisher confirms: the confirmations that publishers wait for, and the ledger of unconfirmed publishes.

A confirmation is one small object; a lock, a future or a list is created only if somebody waits for it. The ledger
numbers publishes as the broker does, from 1 on each link; the tags that users see continue over links.

The connection's lock guards the ledger and the settling of confirmations. Waiters are to_wake by the connection's loop
after the lock is released. Any thread, and any event loop, may wait for a confirmation.

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

# What is kept of a publish in order to resend it, or to recognise it when it is returned:
# exchange, routing key, content header, body, mandatory.
SentMessage: TypeAlias = tuple[str, str, bytes, bytes, bool]


class Confirmation:
    """The confirm of one publish: `result` (or `await`) waits for it, and raises if the publish failed.

    Outside confirm mode the broker sends no confirms: waiting raises Misuse at once, and the tag is 0.
    """

    __slots__ = ("_error", "_waiters", "_waits", "message", "state", "tag")

    def __init__(self, waits: "PublishWaits | None" = None, tag: int = 0) -> None:
        self._waits = waits
        self._error: ClientError | None = None
        self._waiters: list[Callable[[], object]] | None = None
        self.message: SentMessage | None = None
        self.state = _PENDING
        self.tag = tag

    def done(self) -> bool:
        """Whether `result` returns or raises without waiting."""
        return self.state != _PENDING

    def result(self, timeout: float | None = None) -> None:
        """Wait for the confirm; raise Nacked, Unroutable, PublishLost, or CallTimedOut."""
        if self.state == _PENDING:
            self._waits.block(self, timeout)  # type: ignore[union-attr]
        if self._error is not None:
            raise self._error
        self._require_confirming()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Like `result`, but return the error instead of raising it, except for a timeout."""
        if self.state == _PENDING:
            self._waits.block(self, timeout)  # type: ignore[union-attr]
        self._require_confirming()
        return self._error

    def add_done_callback(self, callback: Callable[["Confirmation"], object]) -> None:
        """Call it with this confirmation when that is done: on the channel's worker, or at once if it already is."""
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

    # -- under the connection's lock ---------------------------------------------------------------------------------

    def add_waiter(self, waiter: Callable[[], object]) -> bool:
        """Call `waiter` on the loop when this is done; return False if it already is."""
        if self.state != _PENDING:
            return False
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        return True

    def settle(self, error: ClientError | None, to_wake: list["Confirmation"]) -> None:
        """Set the outcome; append this to `to_wake` if somebody waits for it."""
        if self.state == _PENDING:
            self.state = _DONE if error is None else _FAILED
            self._error = error
            self.message = None
            if self._waiters is not None:
                to_wake.append(self)

    # -- on the loop, after the lock is released ---------------------------------------------------------------------

    def wake(self) -> int:
        """Call the waiters; return their number."""
        waiters, self._waiters = self._waiters or [], None
        for waiter in waiters:
            waiter()
        return len(waiters)


def make_unconfirmed() -> Confirmation:
    """Return the confirmation of a publish outside confirm mode."""
    confirmation = Confirmation()
    confirmation.state = _UNCONFIRMED
    return confirmation


class Unconfirmed:
    """The unconfirmed publishes of one channel, by their number on this link, which the broker uses."""

    __slots__ = ("_barriers", "_lowest", "_next", "_offset", "_pending", "_resent", "_waits", "first_error")

    def __init__(self, waits: "PublishWaits") -> None:
        self._waits = waits
        self._pending: dict[int, Confirmation] = {}
        self._barriers: list[tuple[int, Confirmation]] = []
        self._lowest = 1  # no lower number is unconfirmed
        self._next = 1
        self._offset = 0  # tag for users = number on this link + offset
        self._resent = 0  # numbers up to this are resent publishes, which keep their tags
        self.first_error: ClientError | None = None  # since `take_first_error`

    @property
    def next_tag(self) -> int:
        """The tag of the next publish."""
        return self._next + self._offset

    @property
    def count(self) -> int:
        return len(self._pending)

    def has_one(self) -> bool:
        """Whether exactly one publish is unconfirmed."""
        return len(self._pending) == 1

    def add(self, message: SentMessage | None) -> Confirmation:
        """Add a publish under the next number."""
        number = self._next
        self._next = number + 1
        confirmation = Confirmation.__new__(Confirmation)
        confirmation._waits = self._waits
        confirmation._error = None
        confirmation._waiters = None
        confirmation.message = message
        confirmation.state = _PENDING
        confirmation.tag = number + self._offset
        self._pending[number] = confirmation
        return confirmation

    def skip(self) -> None:
        """Use up the next number for a publish whose confirm is ignored."""
        self._next += 1

    def settle(self, number: int, multiple: bool, is_ack: bool, to_wake: list[Confirmation]) -> int:
        """Handle an ack or nack of one publish, or of all up to it; return the number of publishes."""
        pending = self._pending
        count = 0
        if not multiple:
            confirmation = pending.pop(number, None)
            if confirmation is not None:
                confirmation.settle(None if is_ack else self._nacked(confirmation), to_wake)
                count = 1
        else:
            if number == 0 or number >= self._next:
                number = self._next - 1
            for each in range(self._lowest, number + 1):
                confirmation = pending.pop(each, None)
                if confirmation is not None:
                    confirmation.settle(None if is_ack else self._nacked(confirmation), to_wake)
                    count += 1
            if number >= self._lowest:
                self._lowest = number + 1
        if self._barriers:
            self._lift_barriers(to_wake)
        return count

    def listener_tags(self, number: int, multiple: bool) -> list[tuple[int, bool]]:
        """Return the (tag, multiple) for confirm listeners. Call it before `settle`."""
        if number > self._resent or not self._resent:
            return [(number + self._offset, multiple)]
        numbers = range(self._lowest, number + 1) if multiple else (number,)
        return [(self._pending[each].tag, False) for each in numbers if each in self._pending]

    def fail_returned(self, returned: "Returned", header: bytes, to_wake: list[Confirmation]) -> bool:
        """Fail the first unconfirmed publish that equals this returned message; return False if there is none."""
        number = self._number_of(returned.exchange, returned.routing_key, returned.body, header)
        if number == 0:  # the broker may have changed the header
            number = self._number_of(returned.exchange, returned.routing_key, returned.body, None)
        if number == 0:
            return False
        self._pending.pop(number).settle(self._keep_first(Unroutable(returned)), to_wake)
        if self._barriers:
            self._lift_barriers(to_wake)
        return True

    def add_barrier(self) -> Confirmation:
        """Return a confirmation that is done when all publishes so far are."""
        barrier = Confirmation(self._waits, self.next_tag - 1)
        if self._pending:
            self._barriers.append((self._next - 1, barrier))
        else:
            barrier.state = _DONE
        return barrier

    def take_first_error(self) -> ClientError | None:
        """Return the first failure since the last call."""
        error, self.first_error = self.first_error, None
        return error

    def fail_all(self, error: ClientError, to_wake: list[Confirmation]) -> int:
        """Fail all publishes, as the link or the channel has ended; return their number."""
        count = len(self._pending)
        if count:
            self._keep_first(error)
        for confirmation in self._pending.values():
            confirmation.settle(error, to_wake)
        self._pending.clear()
        self._lift_barriers(to_wake)
        self._offset += self._next - 1
        self._next = self._lowest = 1
        self._resent = 0
        return count

    def renumber(self) -> list[Confirmation]:
        """Renumber for a new link; return the publishes to resend, in order. Their tags stay."""
        before = self._pending
        pending = list(before.values())
        self._barriers = [(sum(1 for each in before if each <= up_to), barrier) for up_to, barrier in self._barriers]
        self._pending = dict(enumerate(pending, 1))
        self._offset = self.next_tag - 1 - len(pending)
        self._resent = len(pending)
        self._next = len(pending) + 1
        self._lowest = 1
        return pending

    def _number_of(self, exchange: str, routing_key: str, body: bytes, header: bytes | None) -> int:
        for number, confirmation in self._pending.items():
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

    def _lift_barriers(self, to_wake: list[Confirmation]) -> None:
        while self._lowest < self._next and self._lowest not in self._pending:
            self._lowest += 1
        for up_to, barrier in self._barriers:
            if self._lowest > up_to or not self._pending:
                barrier.settle(None, to_wake)
        self._barriers = [each for each in self._barriers if each[1].state == _PENDING]

    def _nacked(self, confirmation: Confirmation) -> ClientError:
        return self._keep_first(Nacked(f"the broker nacked the message with tag {confirmation.tag}"))

    def _keep_first(self, error: ClientError) -> ClientError:
        if self.first_error is None:
            self.first_error = error
        return error
