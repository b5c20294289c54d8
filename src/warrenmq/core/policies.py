"""Policies and operator policies of one virtual host: options for queues and exchanges by name, changed at run time.

Of the policies whose pattern matches a name, the one with the highest priority applies; of equal ones the first by
name. The same holds for operator policies, which bound what users set. So each queue and exchange has at most one of
both, and its options are those of its arguments, the policy and the operator policy together (policy_keys.py). They
change when a policy is set or cleared: in a pass over all queues and exchanges, in slices, so that no turn is long.
None applies to the default exchange and to names under `warren.`.

Policies are definitions like queues: they are in the catalog and outlive the broker.

Owned by the loop thread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from warrenmq.core import reserved
from warrenmq.core.arguments import queue_type_of
from warrenmq.core.exchange import DEFAULT_EXCHANGE, Exchange
from warrenmq.core.options import ExchangeOptions, QueueOptions, exchange_options, queue_options
from warrenmq.core.patterns import Pattern
from warrenmq.core.policy_keys import (
    APPLY_TO,
    EXCHANGE,
    LARGEST,
    find_fault,
    find_targets,
    keys_without_effect,
    merge_definitions,
    merge_exchange_arguments,
    merge_queue_arguments,
)
from warrenmq.core.queue import Queue
from warrenmq.core.routing.erlang_text import is_integer, json_term
from warrenmq.core.timers import RESOLUTION_MS

if TYPE_CHECKING:
    from warrenmq.core.vhost import VHost

POLICY = "policy"
OPERATOR_POLICY = "operator_policy"
LONGEST_NAME = 255
# Of each kind in one virtual host: a queue that is declared is compared with all of them.
MOST_POLICIES = 1_000
DEFAULT_APPLY_TO = "all"
# A change is applied in slices, one per turn, of this many comparisons of a name with a pattern, 1 us each; to give a
# queue other options takes as long as some of them.
SLICE = 2_000
APPLY_COST = 10

Target = Queue | Exchange


class InvalidPolicy(ValueError):
    """This is no policy; the text says why, as RabbitMQ's does."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy or operator policy. `targets` are the types of what it can apply to; none: it is not valid."""

    vhost: str
    name: str
    pattern: str
    apply_to: str
    priority: int | float
    definition: Mapping[str, Any]
    targets: frozenset[str] = field(compare=False, repr=False)
    expression: Pattern = field(compare=False, repr=False)

    def matches(self, type: str, name: str) -> bool:
        """`type` is that of a queue, or "exchange"."""
        return type in self.targets and self.expression.matches(name)

    def outranks(self, other: Policy) -> bool:
        return self.rank < other.rank

    @property
    def rank(self) -> tuple[float, str]:
        """The lowest one applies."""
        return -self.priority, self.name

    def values(self) -> dict[str, Any]:
        """The policy as in RabbitMQ's API and definitions files."""
        return {
            "vhost": self.vhost,
            "name": self.name,
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "definition": dict(self.definition),
            "priority": self.priority,
        }


def parse_policy(
    vhost: str,
    name: str,
    pattern: Any,
    definition: Any,
    priority: Any = 0,
    apply_to: Any = DEFAULT_APPLY_TO,
    is_operator: bool = False,
) -> Policy:
    """Check what a person wrote. InvalidPolicy says all that is wrong with it, in RabbitMQ's words and order."""
    faults = [find_fault(definition, is_operator)]
    if not isinstance(apply_to, str) or apply_to not in APPLY_TO:
        shown = apply_to if isinstance(apply_to, str) else json_term(apply_to)
        *others, last = (f"'{each}'" for each in APPLY_TO)
        faults.append(f"apply-to '{shown}' unrecognised; should be one of: {', '.join(others)}, or {last}")
    expression = None
    if not isinstance(pattern, str):
        faults.append(f"pattern should be a binary but was {json_term(pattern)}")
    else:
        try:
            expression = Pattern(pattern)
        except ValueError as error:
            faults.append(f"pattern should be regular expression but is invalid: {error}")
    if not _is_number(priority):
        faults.append(f"priority should be a number, actually was {json_term(priority)}")
    if not 0 < len(name.encode("utf-8", "surrogatepass")) <= LONGEST_NAME:
        faults.append(f"a policy needs a name of at most {LONGEST_NAME} bytes")
    faults = [fault for fault in faults if fault]
    if faults or expression is None:
        raise InvalidPolicy("\n".join(("Validation failed\n", *faults, "")))
    return Policy(vhost, name, pattern, apply_to, priority, definition, find_targets(apply_to, definition), expression)


def _is_number(value: Any) -> bool:
    return (is_integer(value) and abs(value) <= LARGEST) or (isinstance(value, float) and math.isfinite(value))


def restore_policy(definition: Mapping[str, Any], is_operator: bool) -> tuple[Policy, str]:
    """Return a policy of the catalog, and why it is not valid: then it is kept and applies to nothing."""
    name, kept = definition["name"], definition["arguments"]
    pattern, settings = kept.get("pattern", ""), kept.get("definition", {})
    priority, apply_to = kept.get("priority", 0), kept.get("apply-to", DEFAULT_APPLY_TO)
    try:
        return parse_policy(definition["vhost"], name, pattern, settings, priority, apply_to, is_operator), ""
    except InvalidPolicy as error:
        reason = ", ".join(str(error).split("\n")[2:-1])
        nothing: frozenset[str] = frozenset()
        return Policy(definition["vhost"], name, pattern, apply_to, priority, settings, nothing, Pattern("")), reason


class PolicyBook:
    """Policies of one kind, in the order in which they are tried."""

    def __init__(self, policies: Iterable[Policy] = ()) -> None:
        self._by_name = {policy.name: policy for policy in policies}
        self._ordered: list[Policy] = []
        self._sort()

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Policy]:
        return iter(self._ordered)

    def get(self, name: str) -> Policy | None:
        return self._by_name.get(name)

    def put(self, policy: Policy) -> None:
        self._by_name[policy.name] = policy
        self._sort()

    def remove(self, name: str) -> None:
        del self._by_name[name]
        self._sort()

    def _sort(self) -> None:
        self._ordered = sorted(self._by_name.values(), key=lambda policy: policy.rank)
        self._by_type = {
            type: [(policy.expression.matches, policy) for policy in self._ordered if type in policy.targets]
            for type in APPLY_TO["all"]
        }

    def find(self, type: str, name: str) -> Policy | None:
        """Return the policy that applies to what has this type and name."""
        for matches, policy in self._by_type.get(type, ()):
            if matches(name):
                return policy
        return None


@dataclass(frozen=True, slots=True)
class InForce:
    """What applies to one queue or exchange."""

    policy: Policy | None = None
    operator_policy: Policy | None = None

    def definition(self) -> dict[str, Any]:
        """The settings of both together."""
        return merge_definitions(*self._definitions())

    def queue_options(self, is_durable: bool, arguments: Mapping[str, Any]) -> QueueOptions:
        return queue_options(is_durable, self.queue_arguments(arguments))

    def queue_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if self is NONE:
            return arguments
        return merge_queue_arguments(queue_type_of(arguments), arguments, *self._definitions())

    def exchange_options(self, type: str, arguments: Mapping[str, Any]) -> ExchangeOptions:
        return exchange_options(type, merge_exchange_arguments(arguments, *self._definitions()))

    def _definitions(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        policy, operator = self.policy, self.operator_policy
        return {} if policy is None else policy.definition, {} if operator is None else operator.definition


NONE = InForce()


def find_in_force(policies: PolicyBook, operator_policies: PolicyBook, type: str, name: str) -> InForce:
    """Return what applies to a queue of this type and name, or to an exchange."""
    if not _is_governed(name):
        return NONE
    policy, operator_policy = policies.find(type, name), operator_policies.find(type, name)
    return NONE if policy is None and operator_policy is None else InForce(policy, operator_policy)


def _is_governed(name: str) -> bool:
    return name != DEFAULT_EXCHANGE and not reserved.is_reserved(name)


def restore_books(snapshot: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, tuple[PolicyBook, PolicyBook]]:
    """Return policies and operator policies by virtual host, as the catalog has them."""
    found: dict[str, tuple[PolicyBook, PolicyBook]] = {}
    for is_operator, kind in enumerate((POLICY, OPERATOR_POLICY)):
        for definition in snapshot.get(kind, ()):
            books = found.setdefault(definition["vhost"], (PolicyBook(), PolicyBook()))
            books[is_operator].put(restore_policy(definition, bool(is_operator))[0])
    return found


@dataclass(slots=True)
class _Pass:
    """A policy takes the place of another one (None: there is none) at all targets; `targets` are those to come.

    Queues to which the same applies share a pair, which is found by the identities of its policies, and options.
    """

    is_operator: bool
    old: Policy | None
    new: Policy | None
    targets: Iterator[Target]
    pairs: dict[tuple[int, int], InForce] = field(default_factory=dict)
    options: dict[Any, QueueOptions] = field(default_factory=dict)

    def pair_of(self, policy: Policy | None, operator_policy: Policy | None) -> InForce:
        key = id(policy), id(operator_policy)
        pair = self.pairs.get(key)
        if pair is None:
            pair = NONE if policy is None and operator_policy is None else InForce(policy, operator_policy)
            self.pairs[key] = pair
        return pair


class Policies:
    """The policies of one virtual host, and what they apply to."""

    def __init__(self, vhost: VHost) -> None:
        self._vhost = vhost
        self._passes: deque[_Pass] = deque()  # one after the other
        self._books = {POLICY: PolicyBook(), OPERATOR_POLICY: PolicyBook()}
        self._in_force: dict[Target, InForce] = {}  # of targets to which one applies

    # -- policies ----------------------------------------------------------------------------------------------------

    def list(self, is_operator: bool = False) -> Sequence[Policy]:
        """Return all, the highest priority first."""
        return [*self._book(is_operator)]

    def get(self, name: str, is_operator: bool = False) -> Policy | None:
        return self._book(is_operator).get(name)

    def set(
        self,
        name: str,
        pattern: Any,
        definition: Any,
        priority: Any = 0,
        apply_to: Any = DEFAULT_APPLY_TO,
        is_operator: bool = False,
    ) -> bool:
        """Add or replace a policy and apply it, in the open turn and, if targets are many, in the next ones.

        Return whether it is new.

        InvalidPolicy: it cannot be a policy, and nothing is changed.
        """
        policy = parse_policy(self._vhost.name, name, pattern, definition, priority, apply_to, is_operator)
        book = self._book(is_operator)
        old = book.get(name)
        if old == policy and old.targets == policy.targets:
            return False
        if old is None and len(book) >= MOST_POLICIES:
            raise InvalidPolicy(f"there are {MOST_POLICIES} policies already, which is the most of a virtual host")
        kept = {key: value for key, value in policy.values().items() if key not in ("vhost", "name")}
        saved = {"vhost": policy.vhost, "name": name, "arguments": kept}
        self._vhost.broker.catalog.save(_kind(is_operator), (policy.vhost, name), saved)
        book.put(policy)
        if ignored := keys_without_effect(policy.definition):
            self._vhost.broker.warning_log.warn(
                "policy", f"{_describe(policy, is_operator)} has keys without effect: {', '.join(ignored)}"
            )
        self._changed(is_operator, old, policy)
        return old is None

    def clear(self, name: str, is_operator: bool = False) -> bool:
        """Remove a policy, so that it applies no more; turns as in `set`. Return whether there was one."""
        book = self._book(is_operator)
        old = book.get(name)
        if old is None:
            return False
        self._vhost.broker.catalog.delete(_kind(is_operator), (self._vhost.name, name))
        book.remove(name)
        self._changed(is_operator, old, None)
        return True

    def delete_all(self) -> None:
        """The virtual host is deleted, with all that is in it."""
        for kind, book in self._books.items():
            for policy in [*book]:
                self._vhost.broker.catalog.delete(kind, (policy.vhost, policy.name))
                book.remove(policy.name)

    def restore(self, definition: Mapping[str, Any], is_operator: bool) -> None:
        """Take a policy of the catalog, before queues and exchanges are restored."""
        policy, reason = restore_policy(definition, is_operator)
        self._book(is_operator).put(policy)
        if reason:
            self._vhost.broker.recovery_warnings.append(
                f"{_describe(policy, is_operator)} is not valid and not applied: {reason}"
            )
        self._changed(is_operator, None, policy)

    def _book(self, is_operator: bool) -> PolicyBook:
        return self._books[_kind(is_operator)]

    # -- what they apply to ------------------------------------------------------------------------------------------

    def of(self, target: Target) -> InForce:
        """Return what applies to a queue or exchange."""
        return self._in_force.get(target, NONE)

    def find(self, type: str, name: str) -> InForce:
        """Return what applies to a new queue of this type and name, or to a new exchange."""
        return find_in_force(self._books[POLICY], self._books[OPERATOR_POLICY], type, name)

    def note(self, queue: Queue, in_force: InForce) -> None:
        """A queue was made with the options of these policies."""
        if in_force is not NONE:
            self._in_force[queue] = in_force
        self._remark(queue, in_force)

    def adopt(self, exchange: Exchange) -> None:
        """Apply the policies to a new exchange."""
        if len(self._books[POLICY]) or len(self._books[OPERATOR_POLICY]):
            self._put_in_force(exchange, self.find(EXCHANGE, exchange.name), {})

    def forget(self, target: Target) -> None:
        """A queue or exchange is gone."""
        self._in_force.pop(target, None)

    def _changed(self, is_operator: bool, old: Policy | None, new: Policy | None) -> None:
        """Apply a policy in place of another one: a pass over all targets, behind the passes that are under way."""
        targets: list[Target] = [*self._vhost.queues.values(), *self._vhost.exchanges.values()]
        self._passes.append(_Pass(is_operator, old, new, iter(targets)))
        if len(self._passes) == 1:
            self._run_passes()

    def _run_passes(self) -> None:
        """Do one slice of the passes under way, and see to it that the rest is done in the next turns."""
        left = SLICE
        while self._passes:
            current = self._passes[0]
            for target in current.targets:
                if self._is_there(target):
                    left -= self._reconsider(target, current)
                if left <= 0:
                    broker = self._vhost.broker
                    broker.timers.schedule(broker.turn.now_ms - RESOLUTION_MS, self._run_passes)
                    return
            self._passes.popleft()

    def _reconsider(self, target: Target, change: _Pass) -> int:
        """Apply a change to one target; return what that took, in comparisons of a name with a pattern.

        Most names are compared with one pattern. What later passes have changed in the book may be in force already.
        """
        now = self._in_force.get(target, NONE)
        current = now.operator_policy if change.is_operator else now.policy
        new = change.new
        cost = 1
        if current is not None and current is change.old:
            book = self._book(change.is_operator)
            chosen = book.find(_type_of(target), target.name)
            cost = len(book)
        elif new is None or (current is not None and not new.outranks(current)):
            return cost
        elif new.matches(_type_of(target), target.name) and _is_governed(target.name):
            chosen = new
        else:
            return cost
        pair = change.pair_of(*((now.policy, chosen) if change.is_operator else (chosen, now.operator_policy)))
        self._put_in_force(target, pair, change.options)
        return cost + APPLY_COST

    def _is_there(self, target: Target) -> bool:
        found = self._vhost.exchanges if isinstance(target, Exchange) else self._vhost.queues
        return found.get(target.name) is target

    def _put_in_force(self, target: Target, in_force: InForce, known: dict[Any, QueueOptions]) -> None:
        if in_force is NONE:
            self._in_force.pop(target, None)
        else:
            self._in_force[target] = in_force
        if isinstance(target, Exchange):
            routing = in_force.exchange_options(target.type, target.arguments)
            if routing != target.options:
                self._vhost.apply(target, routing)
            return
        options = _options_of(target, in_force, known)
        if options != target.options:
            self._vhost.apply(target, options)
            self._remark(target, in_force)

    def _remark(self, queue: Queue, in_force: InForce) -> None:
        """Say where at-least-once dead-lettering was asked for and cannot be, as RabbitMQ logs it."""
        if queue.options.is_dead_letter_kept or queue.options.dead_letter_exchange is None:
            return
        if in_force.queue_arguments(queue.arguments).get("x-dead-letter-strategy") == "at-least-once":
            self._vhost.broker.warning_log.warn(
                "dead-letter-strategy",
                f"queue '{queue.name}' in vhost '{queue.vhost}' falls back to dead-letter-strategy at-most-once: "
                "at-least-once needs overflow reject-publish",
            )


def _options_of(queue: Queue, in_force: InForce, known: dict[Any, QueueOptions]) -> QueueOptions:
    """Return the options of a queue; those that are `known` are shared by queues with the same arguments."""
    try:
        key = (id(in_force), queue.is_durable, *queue.arguments.items(), *map(type, queue.arguments.values()))
        options = known.get(key)
    except TypeError:  # a table or an array among the arguments
        return in_force.queue_options(queue.is_durable, queue.arguments)
    if options is None:
        options = known[key] = in_force.queue_options(queue.is_durable, queue.arguments)
    return options


def _type_of(target: Target) -> str:
    return EXCHANGE if isinstance(target, Exchange) else target.options.type


def _kind(is_operator: bool) -> str:
    return OPERATOR_POLICY if is_operator else POLICY


def _describe(policy: Policy, is_operator: bool) -> str:
    return f"{_kind(is_operator).replace('_', ' ')} '{policy.name}' in vhost '{policy.vhost}'"
