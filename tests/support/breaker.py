"""A TCP proxy between a client and a broker that breaks what passes through it: on command, or at random from a seed.

    up    from the client to the broker
    down  from the broker to the client

    reset       both sides get RST                  end         both sides get FIN
    half-close  one side gets FIN, the other way goes on
    swallow     what comes is read and dropped      hold        nothing is read, nothing is lost
    delay       each piece waits                    damage      a frame becomes one that no protocol allows
    refuse      new connections are reset

It knows where frames begin, so that damage can be of the kind that the receiver must notice (the type of a frame is
changed): a flipped byte in a body or in a delivery tag is something that no client and no broker can find out.

Runs on an event loop in a thread of its own, which owns the sockets. The test calls methods and reads counters.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

UP, DOWN = "up", "down"
BOTH = (UP, DOWN)
ORDER_LIMIT = 30.0

_PROTOCOL_HEADER_SIZE = 8
_FRAME_HEADER_SIZE = 7
_FRAME_END_SIZE = 1
_NO_SUCH_FRAME = 0x63
_HARD_END = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST

Rewrite = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one connection in one direction, after N bytes have passed in total."""

    kind: str
    direction: str
    after: int
    seconds: float = 0.0


class RandomFaults:
    """Draws faults from a seed. `calm_bytes` is how many bytes pass between two of them, in the mean."""

    KINDS = {
        "reset": 8,
        "end": 6,
        "half-close": 6,
        "delay": 8,
        "damage": 6,
        "swallow": 1,  # costs the client two heartbeats to find out
    }

    def __init__(self, seed: int, calm_bytes: int = 60_000, longest_delay: float = 0.2) -> None:
        self._random = random.Random(seed)
        self._calm_bytes = calm_bytes
        self._longest_delay = longest_delay

    def draw(self) -> Fault | None:
        kind = self._random.choices(list(self.KINDS), list(self.KINDS.values()))[0]
        # One in eight comes early enough to hit the handshake or the replay of the topology.
        mean = self._calm_bytes if self._random.randrange(8) else 400
        return Fault(
            kind,
            self._random.choice(BOTH),
            int(self._random.expovariate(1 / mean)),
            self._random.uniform(0.0, self._longest_delay),
        )


class ScriptedFaults(RandomFaults):
    """One given fault for each connection to come, in order; none for those after them."""

    def __init__(self, *faults: Fault) -> None:
        self._faults = list(faults)

    def draw(self) -> Fault | None:
        return self._faults.pop(0) if self._faults else None


class Breaker:
    """Listens on a port of its own and passes every connection on to the broker until it is stopped."""

    def __init__(self, url: str, fault_source: RandomFaults | None = None) -> None:
        parts = urlsplit(url)
        self._target = parts.hostname or "127.0.0.1", parts.port or 5672
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        credentials = parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(parts._replace(netloc=f"{credentials}@127.0.0.1:{self.port}"))
        self.fault_source = fault_source
        self.connections_made = 0
        self.connections_refused = 0
        self.faults: Counter[str] = Counter()
        self.is_refusing = False
        self.delay_seconds = 0.0
        self.swallows: set[str] = set()
        self._flows = {direction: asyncio.Event() for direction in BOTH}  # clear while it is held
        for flow in self._flows.values():
            flow.set()
        self.rewrites: dict[str, Rewrite] = {}
        self._lines: set[_Line] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="breaker", daemon=True)
        self._thread.start()

    # -- orders, from any thread -------------------------------------------------------------------------------------

    def reset(self) -> None:
        """End every connection with RST; new ones are accepted."""
        self._order(lambda: [line.fail("reset") for line in list(self._lines)])

    def end(self) -> None:
        """End every connection with FIN, both ways."""
        self._order(lambda: [line.fail("end") for line in list(self._lines)])

    def half_close(self, direction: str) -> None:
        """Say in this direction that no more comes; the other way stays open."""
        self._order(lambda: [line.fail("half-close", direction) for line in list(self._lines)])

    def damage(self, direction: str) -> None:
        """Spoil the next frame that goes this way on every connection that there is."""
        self._order(lambda: [line.pipes[direction].spoil_next() for line in list(self._lines)])

    def swallow(self, *directions: str) -> None:
        """From now on drop what comes (both ways, when none is named); the sockets stay open."""
        self._order(lambda: self.swallows.update(directions or BOTH))

    def hold(self, *directions: str) -> None:
        """From now on keep what comes (both ways, when none is named), until `calm`."""
        self._order(lambda: [self._flows[direction].clear() for direction in directions or BOTH])

    def delay(self, seconds: float) -> None:
        """From now on every piece waits so long before it goes on."""
        self._order(lambda: setattr(self, "delay_seconds", seconds))

    def refuse(self, is_refusing: bool = True) -> None:
        """Reset new connections, or (False) take them again."""
        self._order(lambda: setattr(self, "is_refusing", is_refusing))

    def rewrite(self, direction: str, rewrite: Rewrite | None) -> None:
        """Give every whole frame that goes this way to the function, and send what it makes of it."""
        if rewrite is None:
            self._order(lambda: self.rewrites.pop(direction, None))
        else:
            self._order(lambda: self.rewrites.update({direction: rewrite}))

    def aim(self, url: str) -> None:
        """Pass new connections on to another broker."""
        parts = urlsplit(url)
        self._order(lambda: setattr(self, "_target", (parts.hostname or "127.0.0.1", parts.port or 5672)))

    def calm(self) -> None:
        """Break nothing any more, on old connections and on new ones; what was held goes on.

        A connection of which something was dropped is reset: no TCP goes on with a hole in it.
        """
        self._order(self._calm)

    def close(self) -> None:
        """End all, and return when the thread has ended."""
        if self._thread.is_alive():
            self._order(self._loop.stop)
            self._thread.join(ORDER_LIMIT)

    def wait_for_connections(self, count: int, limit: float = ORDER_LIMIT) -> None:
        """Wait until this number of connections have been made in all."""
        deadline = time.monotonic() + limit
        while self.connections_made < count:
            assert time.monotonic() < deadline, f"{self.connections_made} connections were made, not {count}"
            time.sleep(0.005)

    def bytes_passed(self, direction: str) -> int:
        """How much went this way on the connections that there are."""
        return sum(line.pipes[direction].passed for line in list(self._lines))

    @property
    def connections_open(self) -> int:
        return len(self._lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def flow(self, direction: str) -> None:
        """On the loop: return when nothing is held in this direction."""
        await self._flows[direction].wait()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _order(self, what: Callable[[], Any]) -> None:
        done = threading.Event()

        def obey() -> None:
            try:
                what()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(obey)
        assert done.wait(ORDER_LIMIT), "the breaker does not obey"

    def _calm(self) -> None:
        self.fault_source = None
        self.is_refusing = False
        self.delay_seconds = 0.0
        self.swallows.clear()
        for flow in self._flows.values():
            flow.set()
        self.rewrites.clear()
        for line in list(self._lines):
            line.calm()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listener))
        self._loop.run_forever()
        serving.close()
        for line in list(self._lines):
            line.fail("reset")
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_refusing:
            self.connections_refused += 1
            _hang_up(writer, hard=True)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _hang_up(writer, hard=True)
            return
        self.connections_made += 1
        line = _Line(self, (reader, writer), (far_reader, far_writer))
        self._lines.add(line)
        try:
            await line.run()
        except asyncio.CancelledError:
            pass  # the breaker closes; asyncio's streams would log a task of theirs that ends cancelled
        finally:
            self._lines.discard(line)


class _Line:
    """One connection: a pipe each way, and the fault that waits for it."""

    def __init__(
        self,
        breaker: Breaker,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.breaker = breaker
        self._writers = (near[1], far[1])
        self.pipes = {
            UP: _Pipe(self, UP, near[0], far[1], _PROTOCOL_HEADER_SIZE),
            DOWN: _Pipe(self, DOWN, far[0], near[1], 0),
        }
        self._draw()

    async def run(self) -> None:
        await asyncio.gather(*(pipe.run() for pipe in self.pipes.values()))
        for writer in self._writers:
            _hang_up(writer)

    def fail(self, kind: str, direction: str = UP, seconds: float = 0.0) -> None:
        self.breaker.faults[kind] += 1
        pipe = self.pipes[direction]
        if kind == "reset":
            for writer in self._writers:
                _hang_up(writer, hard=True)
        elif kind == "end":
            for writer in self._writers:
                _hang_up(writer)
        elif kind == "half-close":
            pipe.say_end()
        elif kind == "swallow":
            pipe.swallows = True
        elif kind == "delay":
            pipe.pause_seconds = seconds
        elif kind == "damage":
            pipe.spoils_next = True

    def strike(self, direction: str) -> None:
        """Some bytes passed: apply the next fault, if it is time."""
        fault = self.fault
        if fault is None or fault.direction != direction or self._passed() < fault.after:
            return
        self.fault = None
        self.fail(fault.kind, direction, fault.seconds)
        if fault.kind == "delay" and not isinstance(self.breaker.fault_source, ScriptedFaults):
            for pipe in self.pipes.values():
                pipe.passed = 0
            self._draw()

    def _passed(self) -> int:
        return sum(pipe.passed for pipe in self.pipes.values())

    def calm(self) -> None:
        self.fault = None
        for pipe in self.pipes.values():
            pipe.spoils_next = False
        if any(pipe.has_hole for pipe in self.pipes.values()):
            self.fail("reset")

    def _draw(self) -> None:
        self.fault: Fault | None = self.breaker.fault_source.draw() if self.breaker.fault_source else None


class _Pipe:
    """One direction of a connection."""

    def __init__(
        self, line: _Line, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, preface: int
    ) -> None:
        self._line = line
        self._direction = direction
        self._reader = reader
        self._writer = writer
        self._pending = b""
        self._preface = preface
        self.passed = 0
        self.pause_seconds = 0.0
        self.swallows = False
        self.spoils_next = False
        self.has_hole = False
        self._has_ended = False

    def spoil_next(self) -> None:
        self._line.breaker.faults["damage"] += 1
        self.spoils_next = True

    def say_end(self) -> None:
        if not self._writer.is_closing() and not self._has_ended:
            self._has_ended = True
            self._writer.write_eof()

    async def run(self) -> None:
        try:
            while data := await self._reader.read(65536):
                await self._pass_on(data)
            if self._direction not in self._line.breaker.swallows:
                self.say_end()
        except OSError:
            # One side was reset: the other is reset, too.
            self._line.fail("reset")

    async def _pass_on(self, data: bytes) -> None:
        breaker = self._line.breaker
        self._line.strike(self._direction)
        if pause := breaker.delay_seconds + self.pause_seconds:
            self.pause_seconds = 0.0
            await asyncio.sleep(pause)
        await breaker.flow(self._direction)
        frames = self._whole_frames(data)
        if self.swallows or self._direction in breaker.swallows:
            self.has_hole = True
            return
        self.passed += len(data)
        if not self._writer.is_closing() and not self._has_ended:
            self._writer.write(b"".join(frames))
            await self._writer.drain()

    def _whole_frames(self, data: bytes) -> list[bytes]:
        """Cut what has come into frames, changed as ordered; the rest waits for its end."""
        data = self._pending + data
        frames, position = [], min(self._preface, len(data))
        if position:
            frames.append(data[:position])
            self._preface -= position
        while len(data) - position >= _FRAME_HEADER_SIZE:
            size = int.from_bytes(data[position + 3 : position + 7], "big") + _FRAME_HEADER_SIZE + _FRAME_END_SIZE
            if position + size > len(data):
                break
            frames.append(self._changed(data[position : position + size]))
            position += size
        self._pending = data[position:]
        return frames

    def _changed(self, frame: bytes) -> bytes:
        if self.spoils_next:
            self.spoils_next = False
            return bytes([_NO_SUCH_FRAME]) + frame[1:]
        rewrite = self._line.breaker.rewrites.get(self._direction)
        return rewrite(frame) if rewrite else frame


def _hang_up(writer: asyncio.StreamWriter, hard: bool = False) -> None:
    """Close the socket, with RST if `hard`."""
    if hard and not writer.is_closing():
        peer: socket.socket = writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _HARD_END)
        writer.transport.abort()
    else:
        writer.close()
