"""Sessions of users who signed in to the pages.

A session is identified by a random token; only its hash is kept. It ends when idle or too old, or when the user signs
out. Sessions are in memory only: a restart of the broker signs everyone out.

Owned by the loop.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

IDLE_SECONDS = 60 * 60
MAX_AGE_SECONDS = 12 * 60 * 60
MAX_SESSIONS = 10_000


@dataclass(slots=True)
class Session:
    """A signed-in user. Every request that changes something must carry `csrf`."""

    user: str
    csrf: str
    began_at: float
    used_at: float

    def is_expired(self, now: float) -> bool:
        return now - self.used_at >= IDLE_SECONDS or now - self.began_at >= MAX_AGE_SECONDS


class Sessions:
    """All sessions of one broker, the least recently used first."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, Session] = {}

    def begin(self, user: str, now: float) -> tuple[str, Session]:
        """Create a session; return its token and the session."""
        self._drop_expired(now)
        token = secrets.token_urlsafe(32)
        session = self._sessions[_hash(token)] = Session(user, secrets.token_urlsafe(24), now, now)
        return token, session

    def find(self, token: str, now: float) -> Session | None:
        """Return the session of this token, if it is valid, and mark it as used."""
        key = _hash(token)
        session = self._sessions.pop(key, None)
        if session is None or session.is_expired(now):
            return None
        session.used_at = now
        self._sessions[key] = session  # most recently used
        return session

    def end(self, token: str) -> None:
        self._sessions.pop(_hash(token), None)

    def _drop_expired(self, now: float) -> None:
        expired = [key for key, session in self._sessions.items() if session.is_expired(now)]
        for key in expired:
            del self._sessions[key]
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
