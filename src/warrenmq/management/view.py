"""The HTTP server's view of its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from warrenmq.core.broker import Broker
from warrenmq.core.reserved import READERS
from warrenmq.management.errors import Forbidden
from warrenmq.management.ports import Change, Firehose, Login, Origin, TraceReader, TraceRules


async def refuse_all(name: str, password: str, origin: Origin) -> bool:
    """Refuse every user: the login of a node without users."""
    return False


async def change_at_once(work: Callable[[], Any]) -> Any:
    """Make a change without waiting for durability."""
    return work()


@dataclass(frozen=True, slots=True)
class NodeView:
    """A port that is None is not available, and its paths respond with 503."""

    broker: Broker
    ready: Callable[[], tuple[bool, str]]  # True, or False and the reason
    loop_lag: Callable[[], float]
    version: str
    alarms: Callable[[], list[str]] = list  # resources that are short
    figures: Callable[[], dict[str, int]] = dict  # of the storage
    login: Login = refuse_all
    traces: TraceReader | None = None
    rules: TraceRules | None = None
    firehose: Firehose | None = None
    refused_connections: Callable[[], Mapping[str, int]] = dict  # by reason
    change: Change = change_at_once
    tracing_state: Callable[[], Mapping[str, Any]] = dict  # enabled, kept, dropped, failure (docs/tracing.md)

    def visible_vhosts(self, user: str) -> frozenset[str] | None:
        """Return the virtual hosts that a user may enter; None if all."""
        may_enter = self.broker.users.may_enter
        visible = frozenset(name for name in self.broker.vhosts if may_enter(user, name))
        return None if len(visible) == len(self.broker.vhosts) else visible

    def may_monitor(self, user: str) -> bool:
        """Return True if the user may read the event log and the results of the analysis."""
        return not self.broker.users.tags(user).isdisjoint(READERS)

    def require_monitoring(self, user: str) -> None:
        if not self.may_monitor(user):
            raise Forbidden(f"user '{user}' needs the tag 'monitoring' or 'administrator'")

    def require_tag(self, user: str, *tags: str) -> None:
        """Raise Forbidden unless the user has one of these tags."""
        if self.broker.users.tags(user).isdisjoint(tags):
            shown = " or ".join(f"'{tag}'" for tag in tags)
            raise Forbidden(f"user '{user}' needs the tag {shown}")

    def require_everywhere(self, user: str) -> None:
        """Raise Forbidden unless the user may enter every virtual host: the change affects all of them."""
        if self.visible_vhosts(user) is not None:
            raise Forbidden(f"this affects all virtual hosts, and user '{user}' does not have access to all of them")
