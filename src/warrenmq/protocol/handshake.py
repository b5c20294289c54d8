"""The handshake of both sides: start, tune, open (AMQP 0-9-1 §1.4.2).

    server: header? -> start     start-ok? -> tune     tune-ok?     open? -> open-ok
    client: header               start? -> start-ok    tune? -> tune-ok, open      open-ok?

Sans-I/O: each side receives methods and returns those to send. The caller checks the login.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from warrenmq.protocol import spec
from warrenmq.protocol.errors import ChannelError, LocalMisuse, NotAllowed

CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


@dataclass(frozen=True, slots=True)
class Tuning:
    """The negotiated limits. 0 means no heartbeat; in an offer also no limit."""

    channel_max: int
    frame_max: int
    heartbeat: int


CHANNEL_MAX = 65535  # 16 bits on the wire

# What a client asks for by default. It names a frame size, so that a server cannot make it hold frames of any length.
DEFAULT_TUNING = Tuning(channel_max=0, frame_max=131072, heartbeat=60)


class State(Enum):
    """The state of the server's side; the values are RabbitMQ's names."""

    STARTING = "starting"
    TUNING = "tuning"
    OPENING = "opening"
    RUNNING = "running"


class ServerHandshake:
    """The server's side. `start_ok`, `tune_ok` and `open` refuse methods out of order."""

    __slots__ = ("capabilities", "client_properties", "offer", "state", "tuning")

    def __init__(self, offer: Tuning) -> None:
        self.offer = offer
        self.tuning = offer
        self.state = State.STARTING
        self.client_properties: dict[str, Any] = {}
        self.capabilities: dict[str, Any] = {}

    def start_ok(self, method: spec.Method) -> spec.ConnectionStartOk:
        """Store the client's properties; the caller checks the login, then calls `authenticated`."""
        if self.state is not State.STARTING or not isinstance(method, spec.ConnectionStartOk):
            raise self.unexpected(method)
        self.client_properties = method.client_properties
        capabilities = method.client_properties.get("capabilities")
        if isinstance(capabilities, dict):
            self.capabilities = capabilities
        return method

    def authenticated(self) -> spec.ConnectionTune:
        self.state = State.TUNING
        return spec.ConnectionTune(self.offer.channel_max, self.offer.frame_max, self.offer.heartbeat)

    def tune_ok(self, method: spec.Method) -> Tuning:
        """Accept at most the offered limits; the client chooses the heartbeat."""
        if self.state is not State.TUNING or not isinstance(method, spec.ConnectionTuneOk):
            raise self.unexpected(method)
        for name, wanted, offered, minimum in (
            ("frame_max", method.frame_max, self.offer.frame_max, spec.FRAME_MIN_SIZE),
            ("channel_max", method.channel_max, self.offer.channel_max, 1),
        ):
            if offered and not minimum <= wanted <= offered:
                side = "above" if not wanted or wanted > offered else "below"
                limit = offered if side == "above" else minimum
                raise NotAllowed(f"negotiated {name} = {wanted} is {side} the allowed {limit}")
        self.tuning = Tuning(method.channel_max, method.frame_max, method.heartbeat)
        self.state = State.OPENING
        return self.tuning

    def open(self, method: spec.Method) -> str:
        """Return the requested virtual host; the caller accepts with `opened`."""
        if self.state is not State.OPENING or not isinstance(method, spec.ConnectionOpen):
            raise self.unexpected(method)
        return method.virtual_host

    def opened(self) -> spec.ConnectionOpenOk:
        self.state = State.RUNNING
        return spec.ConnectionOpenOk()

    def unexpected(self, method: spec.Method) -> ChannelError:
        """Return the error for a method out of order."""
        return ChannelError(
            f"unexpected method in connection state {self.state.value}", method.index >> 16, method.index & 0xFFFF
        )


class ClientHandshake:
    """The client's side. `receive` returns the methods to send; `tuning` is final once `is_done`."""

    __slots__ = (
        "_client_properties",
        "_expected",
        "_mechanism",
        "_response",
        "_wanted",
        "is_done",
        "server_properties",
        "tuning",
        "virtual_host",
    )

    def __init__(
        self,
        mechanism: str,
        response: bytes,
        virtual_host: str = "/",
        wanted: Tuning | None = None,
        client_properties: dict[str, Any] | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._response = response
        self._wanted = wanted or DEFAULT_TUNING
        if 0 < self._wanted.frame_max < spec.FRAME_MIN_SIZE:
            raise LocalMisuse(f"frame_max is {spec.FRAME_MIN_SIZE} at least, not {self._wanted.frame_max}")
        self._expected: type[spec.Method] = spec.ConnectionStart
        self._client_properties = {"capabilities": dict(CAPABILITIES), **(client_properties or {})}
        self.virtual_host = virtual_host
        self.server_properties: dict[str, Any] = {}
        self.tuning: Tuning | None = None
        self.is_done = False

    def receive(self, method: spec.Method) -> list[spec.Method]:
        """Return the answers to a method of the server; raise if another was due."""
        if self.is_done or not isinstance(method, self._expected):
            raise ChannelError(
                f"unexpected method {method.name} during the handshake", method.index >> 16, method.index & 0xFFFF
            )
        if isinstance(method, spec.ConnectionStart):
            return [self._start(method)]
        if isinstance(method, spec.ConnectionTune):
            return [self._tune(method), spec.ConnectionOpen(self.virtual_host)]
        self.is_done = True
        return []

    def _start(self, method: spec.ConnectionStart) -> spec.ConnectionStartOk:
        self._expected = spec.ConnectionTune
        self.server_properties = method.server_properties
        if self._mechanism.encode() not in method.mechanisms.split():
            raise NotAllowed(f"the server does not offer the mechanism {self._mechanism}")
        return spec.ConnectionStartOk(self._client_properties, self._mechanism, self._response)

    def _tune(self, method: spec.ConnectionTune) -> spec.ConnectionTuneOk:
        self._expected = spec.ConnectionOpenOk
        if 0 < method.frame_max < spec.FRAME_MIN_SIZE:
            raise NotAllowed(f"the server offers frames of {method.frame_max} bytes, less than every peer must take")
        self.tuning = Tuning(
            _lower(self._wanted.channel_max, method.channel_max) or CHANNEL_MAX,
            _lower(self._wanted.frame_max, method.frame_max) or DEFAULT_TUNING.frame_max,
            _lower(self._wanted.heartbeat, method.heartbeat) if self._wanted.heartbeat else 0,
        )
        return spec.ConnectionTuneOk(self.tuning.channel_max, self.tuning.frame_max, self.tuning.heartbeat)


def _lower(ours: int, theirs: int) -> int:
    """Return the lower of two limits; 0 is no limit."""
    return min(ours, theirs) if ours and theirs else ours or theirs
