"""What a connection shows of itself, and its listeners: the same on both faces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from warrenmq.client.engine.listener_list import do_nothing
from warrenmq.client.errors import CloseReason

if TYPE_CHECKING:
    from warrenmq.client.engine.connection import EngineConnection, RecoveryEvent
    from warrenmq.client.factory import ConnectionFactory
    from warrenmq.client.url import Address


class ConnectionBase:
    """State and listeners; listeners are called on a worker of the connection."""

    _engine: EngineConnection
    _check_callback: Callable[[Callable[..., object]], None]

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it is connected now."""
        return self._engine.is_open

    @property
    def is_recovering(self) -> bool:
        """Whether the connection was lost and is being reestablished."""
        return self._engine.is_recovering

    @property
    def is_closed(self) -> bool:
        """Whether it has ended for good."""
        return self._engine.is_closed

    @property
    def is_blocked(self) -> bool:
        """Whether the server does not accept publishes, because it is short of memory or disk."""
        return self._engine.is_blocked

    @property
    def close_reason(self) -> CloseReason | None:
        return self._engine.close_reason

    @property
    def factory(self) -> ConnectionFactory:
        """The options in use, with the connection's name and its latest secret."""
        return self._engine.factory

    @property
    def name(self) -> str:
        """The name given, or a generated one."""
        return self._engine.name or ""

    @property
    def address(self) -> Address | None:
        """Host and port of the current connection, or of the last one."""
        return self._engine.address

    @property
    def server_properties(self) -> Mapping[str, Any]:
        """What the server reports about itself: product, version, capabilities."""
        return self._engine.server_properties

    def has_capability(self, name: str) -> bool:
        """Whether the server reports this capability."""
        capabilities = self.server_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(name) is True

    # -- listeners ---------------------------------------------------------------------------------------------------

    def add_blocked_listener(
        self, on_blocked: Callable[[str], object], on_unblocked: Callable[[], object] = do_nothing
    ) -> None:
        """Call the first when the server stops accepting publishes, with its reason; the second when it resumes."""
        self._check_callback(on_blocked)
        self._check_callback(on_unblocked)
        self._engine.blocked_listeners.add((on_blocked, on_unblocked))

    def remove_blocked_listener(
        self, on_blocked: Callable[[str], object], on_unblocked: Callable[[], object] = do_nothing
    ) -> bool:
        """Return False if there is no such pair."""
        return self._engine.blocked_listeners.remove((on_blocked, on_unblocked))

    def add_close_listener(self, listener: Callable[[CloseReason], object]) -> None:
        """Call it with the reason when the connection is lost (`is_final` is False), and when it has ended."""
        self._check_callback(listener)
        self._engine.close_listeners.add(listener)

    def remove_close_listener(self, listener: Callable[[CloseReason], object]) -> bool:
        """Return False if there is no such listener."""
        return self._engine.close_listeners.remove(listener)

    def add_recovery_listener(self, listener: Callable[[RecoveryEvent], object]) -> None:
        """Call it with each step of a recovery: lost, trying, recovered, gave_up."""
        self._check_callback(listener)
        self._engine.recovery_listeners.add(listener)

    def remove_recovery_listener(self, listener: Callable[[RecoveryEvent], object]) -> bool:
        """Return False if there is no such listener."""
        return self._engine.recovery_listeners.remove(listener)

    def add_queue_renamed_listener(self, listener: Callable[[str, str], object]) -> None:
        """Call it with (old, new) when recovery renames a server-named queue."""
        self._check_callback(listener)
        self._engine.renamed_listeners.add(listener)

    def remove_queue_renamed_listener(self, listener: Callable[[str, str], object]) -> bool:
        """Return False if there is no such listener."""
        return self._engine.renamed_listeners.remove(listener)

    def __repr__(self) -> str:
        return f"<Connection {self.name!r} to {self.factory.url(self.address)}: {self._engine.state.value}>"
