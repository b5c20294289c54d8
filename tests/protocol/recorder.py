"""A frame handler that records its input."""

import tracemalloc
from collections.abc import Callable

from warrenmq.protocol.frames import FrameHandler


class Recorder(FrameHandler):
    """`calls` in their order. Announced bodies stand apart: only those are announced that do not come in one piece."""

    def __init__(self, largest_body: int = 2**64 - 1) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.announced: list[tuple[int, int]] = []
        self._largest_body = largest_body

    def on_method(self, channel: int, payload: bytes) -> None:
        self.calls.append(("method", channel, payload))

    def on_ack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        self.calls.append(("ack", channel, delivery_tag, multiple))

    def on_content_header(self, channel: int, body_size: int) -> bool:
        self.announced.append((channel, body_size))
        return body_size <= self._largest_body

    def on_content(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        self.calls.append(("content", channel, method, header, body))

    def on_heartbeat(self) -> None:
        self.calls.append(("heartbeat",))


def traced_growth(action: Callable[[], object]) -> int:
    """How many bytes more Python holds after the action than before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        action()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
