"""Where a message may be in a net of queues that dead-letter into each other.

The model does not say in which order queues come to a message, so it does not say where the message is: it says where
it may be. A message has one state; a step leads from a state to a set of states. A state without a place is a message
that is gone, by an ack, a purge, or for a reason that the net allows: no dead-letter exchange, one that does not
exist, a cycle without a rejection, a full queue that rejects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

EXPIRED, MAXLEN, REJECTED = "expired", "maxlen", "rejected"
NOWHERE = "nowhere"  # an exchange that does not exist

Deaths = tuple[tuple[str, str, int], ...]  # queue, reason, count; most recent first


@dataclass(frozen=True)
class Node:
    """A queue. Its dead letters go to the queue `target` by the default exchange; None: they are dropped."""

    name: str
    target: str | None = None
    ttl_ms: int | None = None
    max_length: int | None = None
    overflow: str = "drop-head"

    @property
    def drops(self) -> bool:
        return self.max_length is not None and self.overflow == "drop-head"

    @property
    def rejects(self) -> bool:
        return self.max_length is not None and self.overflow != "drop-head"


@dataclass(frozen=True)
class State:
    """One message. `place` None: it is gone."""

    place: str | None
    deaths: Deaths = ()
    expires_ms: int | None = None
    is_held: bool = False
    is_persistent: bool = True


def gone(state: State) -> State:
    return State(None, (), None, False, state.is_persistent)


class Net:
    """Pure: from a state to those that may follow it at one time."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: Mapping[str, Node] = {node.name: node for node in nodes}
        self.now_ms = 0

    def published(self, name: str, is_persistent: bool, ttl_ms: int | None) -> set[State]:
        return self._arrive(State(NOWHERE, (), None, False, is_persistent), self.nodes[name], ttl_ms)

    def waiting(self, state: State) -> set[State]:
        """A message waits: it goes on waiting, is dropped by the limit, or expires."""
        if state.place is None or state.is_held:
            return {state}
        node = self.nodes[state.place]
        states = self._die(state, MAXLEN) if node.drops else set()
        if state.expires_ms is not None and state.expires_ms <= self.now_ms:
            return states | self._die(state, EXPIRED)
        return states | {state}

    def rejected(self, state: State) -> set[State]:
        return self._die(replace(state, is_held=False), REJECTED)

    def requeued(self, state: State) -> set[State]:
        return self.waiting(replace(state, is_held=False))

    def restarted(self, state: State) -> set[State]:
        if state.place is not None and not state.is_persistent:
            return {gone(state)}
        return self.requeued(state)

    # -- one death after another

    def _die(self, state: State, reason: str) -> set[State]:
        assert state.place is not None
        node = self.nodes[state.place]
        deaths = add_death(state.deaths, node.name, reason)
        if node.target is None or node.target not in self.nodes or is_cycle(node.target, deaths):
            return {gone(state)}
        return self._arrive(replace(state, deaths=deaths), self.nodes[node.target], None)

    def _arrive(self, state: State, node: Node, ttl_ms: int | None) -> set[State]:
        times = [ttl for ttl in (ttl_ms, node.ttl_ms) if ttl is not None]
        expires_ms = self.now_ms + min(times) if times else None
        here = replace(state, place=node.name, expires_ms=expires_ms, is_held=False)
        states = self._die(here, EXPIRED) if expires_ms == self.now_ms else {here}
        if node.drops:
            states |= self._die(here, MAXLEN)
        if node.rejects:
            states |= {gone(here)}
            if node.overflow == "reject-publish-dlx":
                states |= self._die(here, MAXLEN)
        return states


def add_death(deaths: Deaths, queue: str, reason: str) -> Deaths:
    count = sum(known[2] for known in deaths if known[:2] == (queue, reason))
    return ((queue, reason, count + 1), *(known for known in deaths if known[:2] != (queue, reason)))


def is_cycle(queue: str, deaths: Deaths) -> bool:
    """Return True if the message died in the queue before, and was not rejected there or since."""
    names = [name for name, _, _ in deaths]
    return queue in names and all(reason != REJECTED for _, reason, _ in deaths[: names.index(queue) + 1])
