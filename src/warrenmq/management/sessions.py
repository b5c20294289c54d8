"""Sessions of people who signed in to the pages.

A session is known by a random token; only its hash is kept. It ends when it was not used for a while, when it is old,
or when its owner signs out. Everything is in memory: a restart of the broker signs everybody out. Time is passed in.

Owned by the loop.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

IDLE_SECONDS = 60 * 60
LONGEST_SECONDS = 12 * 60 * 60
MOST_SESSIONS = 10_000


@dataclass(slots=True)
class Session:
    """Somebody who signed in. `csrf` must come with every request that changes something."""

    user: str
    csrf: str
    began_at: float
    used_at: float

    def is_over(self, now: float) -> bool:
        return now - self.used_at >= IDLE_SECONDS or now - self.began_at >= LONGEST_SECONDS


class Sessions:
    """All sessions of one broker, the one used longest ago first."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, Session] = {}

    def begin(self, user: str, now: float) -> tuple[str, Session]:
        """A new session, and the token that its owner shows from now on."""
        self._forget_old(now)
        token = secrets.token_urlsafe(32)
        session = self._sessions[_hash(token)] = Session(user, secrets.token_urlsafe(24), now, now)
        return token, session

    def find(self, token: str, now: float) -> Session | None:
        """The session of this token, which counts as used now."""
        key = _hash(token)
        session = self._sessions.pop(key, None)
        if session is None or session.is_over(now):
            return None
        session.used_at = now
        self._sessions[key] = session  # the last in line again
        return session

    def end(self, token: str) -> None:
        self._sessions.pop(_hash(token), None)

    def _forget_old(self, now: float) -> None:
        over = [key for key, session in self._sessions.items() if session.is_over(now)]
        for key in over:
            del self._sessions[key]
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
