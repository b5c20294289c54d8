"""Limits the rate of password guesses, for AMQP and HTTP together (docs/decisions/0019).

Failures count per (address, user), per address, and per user. Above a limit a login waits before its password is
checked, whether it is right or wrong; if too many wait already it is refused unchecked. The limit per user only delays,
and neither it nor the limit per address applies if this user has logged in from this address before, so guessing
elsewhere locks no client out. The password that succeeded there is checked immediately, so guessing from the same
address does not lock it out either.

A password that failed before is not a new guess: it is refused after a delay and does not count. Clients that retry
an old password therefore do not use up the limit of clients with the new one.

The caller passes the time and does the waiting. Memory is bounded: least recently used entries are evicted.
Owned by the loop thread.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from math import inf
from typing import Any

INTERVAL = 2.0  # above a limit, one password is checked per this many seconds
MAX_WAITING = 1_000
MAX_KEYS = 10_000
REMEMBERED_PASSWORDS = 4  # wrong ones, for each address and user; as keyed hashes


class TooManyFailures(Exception):
    """The login is refused unchecked; retry after `wait` seconds."""

    def __init__(self, wait: float) -> None:
        super().__init__(f"too many failed logins; try again in {wait:g} s")
        self.wait = wait


class _Rate:
    """A rate limit by key: `burst` failures immediately, then one per `interval` seconds."""

    def __init__(self, burst: int, interval: float) -> None:
        self._burst = burst
        self._interval = interval
        self._cleared_at: dict[int, float] = {}  # when the last failure of a key expires; least recently used first

    def wait(self, key: int, now: float) -> float:
        return max(0.0, self._cleared_at.get(key, now) - now - (self._burst - 1) * self._interval)

    def take(self, key: int, now: float) -> None:
        cleared_at = max(self._cleared_at.get(key, now), now) + self._interval
        # A login waits for a few intervals at most, so a key needs no more debt than that.
        _note(self._cleared_at, key, min(cleared_at, now + (self._burst + 3) * self._interval))

    def give_back(self, key: int) -> None:
        if key in self._cleared_at:
            self._cleared_at[key] -= self._interval


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """A login in progress: its password may be checked after `wait` seconds. It ends with `LoginLimit.end`."""

    wait: float
    pair: int
    password: bytes
    limits: tuple[tuple[_Rate, int], ...]  # where it counts as a failure until it ends
    is_new: bool  # not a password that failed before


class LoginLimit:
    """The failed logins of one broker. `failed` counts them; `refused` counts logins refused unchecked."""

    def __init__(
        self, for_pair: int = 10, for_address: int = 100, for_user: int = 100, interval: float = INTERVAL
    ) -> None:
        self.failed = 0
        self.refused = 0
        self.interval = interval
        self._longest_wait = 2.5 * interval  # so two may wait for the same limit
        self._pairs = _Rate(for_pair, interval)
        self._addresses = _Rate(for_address, interval)
        self._users = _Rate(for_user, interval)
        self._right: dict[int, bytes] = {}  # the password that succeeded, by pair; least recently used first
        self._wrong: dict[int, tuple[bytes, ...]] = {}  # by pair
        self._waiting = {True: 0, False: 0}  # by whether the password is new
        self._hash_key = secrets.token_bytes(16)

    def is_free(self, address: str, user: str, password: str, now: float) -> bool:
        """Return True if a login that begins now need not wait."""
        return self._judge(address, user, password, now).wait == 0

    def begin(self, address: str, user: str, password: str, now: float) -> Attempt:
        """Count a login as failed until it ends; TooManyFailures if too many wait already."""
        attempt = self._judge(address, user, password, now)
        if attempt.wait == inf or (attempt.wait > 0 and self._waiting[attempt.is_new] >= MAX_WAITING):
            self.refused += 1
            raise TooManyFailures(self.interval)
        for rate, key in attempt.limits:
            rate.take(key, now)
        if attempt.wait > 0:
            self._waiting[attempt.is_new] += 1
        return attempt

    def end(self, attempt: Attempt, has_succeeded: bool | None) -> None:
        """End a login; `has_succeeded` is None if the password was not checked because the client disconnected."""
        if attempt.wait > 0:
            self._waiting[attempt.is_new] -= 1
        if has_succeeded is None:
            self._give_back(attempt)
            return
        wrong = tuple(each for each in self._wrong.get(attempt.pair, ()) if each != attempt.password)
        if has_succeeded:
            self._give_back(attempt)
            _note(self._right, attempt.pair, attempt.password)
        else:
            self.failed += 1
            if self._right.get(attempt.pair) == attempt.password:  # it was changed
                del self._right[attempt.pair]
            wrong = (*wrong, attempt.password)[-REMEMBERED_PASSWORDS:]
        if wrong or attempt.pair in self._wrong:
            _note(self._wrong, attempt.pair, wrong)

    def _judge(self, address: str, user: str, password: str, now: float) -> Attempt:
        """Return a login that begins now; an infinite wait means that it is refused."""
        network = network_of(address)
        pair = hash((network, user))  # names may be long: only their hashes are kept
        secret = hashlib.blake2b(password.encode("utf-8", "surrogatepass"), key=self._hash_key, digest_size=16).digest()
        if secret in self._wrong.get(pair, ()):
            return Attempt(self.interval, pair, secret, (), is_new=False)
        if secret == self._right.get(pair):
            return Attempt(0.0, pair, secret, (), is_new=False)
        limits = [(self._pairs, pair)]
        longest = self._pairs.wait(pair, now)
        at_least = 0.0
        if pair not in self._right:
            limits += [(self._addresses, hash(network)), (self._users, hash(user))]
            longest = max(longest, self._addresses.wait(hash(network), now))
            at_least = min(self._users.wait(hash(user), now), self._longest_wait)
        wait = max(longest, at_least) if longest <= self._longest_wait else inf
        return Attempt(wait, pair, secret, tuple(limits), is_new=True)

    def _give_back(self, attempt: Attempt) -> None:
        for rate, key in attempt.limits:
            rate.give_back(key)


def network_of(address: str) -> str:
    """Return what counts as one address: an IPv4 address, or an IPv6 /64, which one client may own."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped) if parsed.ipv4_mapped else parsed.packed[:8].hex()
    return str(parsed)


def _note(entries: dict[int, Any], key: int, value: Any) -> None:
    """Set an entry as the most recently used one, and evict the least recently used ones."""
    entries.pop(key, None)
    entries[key] = value
    while len(entries) > MAX_KEYS:
        del entries[next(iter(entries))]
