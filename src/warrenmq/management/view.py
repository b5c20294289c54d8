"""What the HTTP side may see of the node it runs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from warrenmq.core.broker import Broker
from warrenmq.core.reserved import READERS
from warrenmq.management.errors import Forbidden
from warrenmq.management.ports import Change, Firehose, Login, Origin, TraceReader, TraceRules


async def refuse_all(name: str, password: str, origin: Origin) -> bool:
    """The login of a node without one: refuse every user."""
    return False


async def change_at_once(work: Callable[[], Any]) -> Any:
    """The changes of a node whose turns have no end: nothing is awaited."""
    return work()


@dataclass(frozen=True, slots=True)
class NodeView:
    """Where a port is None the node has no such thing, and its paths say so."""

    broker: Broker
    ready: Callable[[], tuple[bool, str]]  # whether clients are served, and if not, why
    loop_lag: Callable[[], float]
    version: str
    alarms: Callable[[], list[str]] = list  # the resources that are short
    figures: Callable[[], dict[str, int]] = dict  # of the storage, where there is one
    login: Login = refuse_all
    traces: TraceReader | None = None
    rules: TraceRules | None = None
    firehose: Firehose | None = None
    refused_connections: Callable[[], Mapping[str, int]] = dict  # by reason
    change: Change = change_at_once
    tracing_state: Callable[[], Mapping[str, Any]] = dict  # enabled, kept, dropped, failure (docs/tracing.md)

    def visible_vhosts(self, user: str) -> frozenset[str] | None:
        """The virtual hosts that a user may enter; None if that is all of them."""
        may_enter = self.broker.users.may_enter
        visible = frozenset(name for name in self.broker.vhosts if may_enter(user, name))
        return None if len(visible) == len(self.broker.vhosts) else visible

    def may_monitor(self, user: str) -> bool:
        """Whether the user may read the event log and the results of the analysis."""
        return not self.broker.users.tags(user).isdisjoint(READERS)

    def require_monitoring(self, user: str) -> None:
        if not self.may_monitor(user):
            raise Forbidden(f"this needs the tag 'monitoring' or 'administrator', and user '{user}' has neither")

    def require_tag(self, user: str, *tags: str) -> None:
        """403 for who has none of these tags."""
        if self.broker.users.tags(user).isdisjoint(tags):
            shown = " or ".join(f"'{tag}'" for tag in tags)
            raise Forbidden(f"this needs the tag {shown}, which user '{user}' does not have")

    def require_everywhere(self, user: str) -> None:
        """403 for who may not enter every virtual host: what is changed here concerns all of them."""
        if self.visible_vhosts(user) is not None:
            raise Forbidden(f"this concerns all virtual hosts, and user '{user}' may not enter all of them")
