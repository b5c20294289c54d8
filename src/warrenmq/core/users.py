"""Users, their passwords and permissions.

A permission is three patterns per user and virtual host, as in RabbitMQ: for configure, write and read. A pattern
matches anywhere in the name (`^` and `$` anchor it); an empty one matches only the empty name. Patterns use RE2 syntax
(patterns.py). System streams also require a tag (reserved.py).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from warrenmq.core import reserved
from warrenmq.core.errors import AccessRefused
from warrenmq.core.patterns import EVERYTHING as EVERYTHING
from warrenmq.core.patterns import Pattern
from warrenmq.core.stats import Revision


@dataclass(frozen=True, slots=True)
class Permission:
    """What one user may do in one virtual host."""

    configure: Pattern
    write: Pattern
    read: Pattern

    def allows(self, action: str, name: str) -> bool:
        pattern: Pattern = getattr(self, action)
        return pattern.matches(name) if pattern.text else not name


@dataclass(slots=True)
class User:
    """A user; `everywhere` is the permission in virtual hosts that are not in `permissions`."""

    name: str
    salt: bytes
    password_hash: bytes
    permissions: dict[str, Permission] = field(default_factory=dict)
    everywhere: Permission | None = None
    tags: frozenset[str] = frozenset()

    def permission(self, vhost: str) -> Permission | None:
        return self.permissions.get(vhost, self.everywhere)


_UNKNOWN_USER = User("", bytes(4), bytes(hashlib.sha256().digest_size))


class Users:
    """The users of one broker. `revision` changes with each change of a user or permission."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}
        self.revision = Revision()

    def add(self, name: str, password: str, tags: Iterable[str] | None = None) -> None:
        """Create a user without permissions, or change the password, and the tags unless None, of an existing one."""
        salt = secrets.token_bytes(4)
        existing = self._users.get(name)
        user = User(name, salt, _hash(salt, password))
        if existing is not None:
            user.permissions, user.everywhere = existing.permissions, existing.everywhere
            user.tags = existing.tags
        if tags is not None:
            user.tags = frozenset(tags)
        self._users[name] = user
        self.revision.number += 1

    def remove(self, name: str) -> None:
        del self._users[name]
        self.revision.number += 1

    def grant(self, name: str, vhost: str | None, configure: str, write: str, read: str) -> None:
        """Set the permission for one virtual host, or with None for all others. ValueError: an invalid pattern."""
        permission = Permission(Pattern(configure), Pattern(write), Pattern(read))
        if vhost is None:
            self._users[name].everywhere = permission
        else:
            self._users[name].permissions[vhost] = permission
        self.revision.number += 1

    def authenticate(self, name: str, password: str) -> bool:
        """Return True if the user has this password; takes equally long for an unknown user."""
        user = self._users.get(name, _UNKNOWN_USER)
        try:
            is_right = hmac.compare_digest(user.password_hash, _hash(user.salt, password))
        except UnicodeEncodeError:  # a lone surrogate, which JSON can carry: no password has one
            is_right = False
        return is_right and user is not _UNKNOWN_USER

    def exists(self, name: str) -> bool:
        return name in self._users

    def tags(self, name: str) -> frozenset[str]:
        user = self._users.get(name)
        return frozenset() if user is None else user.tags

    def may_enter(self, name: str, vhost: str) -> bool:
        user = self._users.get(name)
        return user is not None and user.permission(vhost) is not None

    def require(self, name: str, vhost: str, action: str, kind: str, resource: str) -> None:
        """403 unless the user may configure, write or read the exchange or queue."""
        user = self._users.get(name)
        permission = user.permission(vhost) if user is not None else None
        # In permissions RabbitMQ uses this name for the default exchange.
        checked = "amq.default" if kind == "exchange" and not resource else resource
        is_allowed = permission is not None and permission.allows(action, checked)
        if kind == "queue" and reserved.is_system_stream(vhost, checked):
            is_allowed = is_allowed and reserved.allows(checked, action, self.tags(name))
        if not is_allowed:
            raise AccessRefused(f"{action} access to {kind} '{checked}' in vhost '{vhost}' refused for user '{name}'")

    def require_publish(self, name: str, vhost: str, exchange: str, routing_key: str) -> bool:
        """403 unless the user may publish to the exchange with this key.

        Return True if this holds for every key until the revision changes. It would not with topic permissions; the
        caller then checks each publish.
        """
        self.require(name, vhost, "write", "exchange", exchange)
        return True


def _hash(salt: bytes, password: str) -> bytes:
    return hashlib.sha256(salt + password.encode("utf-8", "surrogateescape")).digest()
