"""Policies and operator policies of one virtual host: options for queues and exchanges by name, changed at run time.

Of the policies whose pattern matches a name, the one with the highest priority applies; among equals, the first by
name. Operator policies, which limit what users may set, work the same way. So each queue and exchange has at most one
of each, and its options are merged from its arguments, the policy and the operator policy (policy_keys.py). When a
policy is set or cleared, the change is applied to all queues and exchanges, in slices that keep turns short. Policies
do not apply to the default exchange or to names under `warren.`.

Policies are stored in the catalog.

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
from warrenmq.core.options import CLASSIC, ExchangeOptions, QueueOptions, exchange_options, queue_options
from warrenmq.core.patterns import Pattern
from warrenmq.core.policy_keys import (
    APPLY_TO,
    EXCHANGE,
    MAX_INTEGER,
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
MAX_NAME_BYTES = 255
# Of each kind in one virtual host: the name of a new queue is matched against all of them.
MAX_POLICIES = 1_000
DEFAULT_APPLY_TO = "all"
# A change is applied in slices, one per turn, of this many pattern matches, 1 us each; applying new options to a queue
# costs as much as APPLY_COST of them.
SLICE = 2_000
APPLY_COST = 10

Target = Queue | Exchange


class InvalidPolicy(ValueError):
    """The policy is invalid; the text is RabbitMQ's."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy or operator policy. `targets` are the types it can apply to; empty if it is not valid."""

    vhost: str
    name: str
    pattern: str
    apply_to: str
    priority: int | float
    definition: Mapping[str, Any]
    targets: frozenset[str] = field(compare=False, repr=False)
    expression: Pattern = field(compare=False, repr=False)

    def matches(self, type: str, name: str) -> bool:
        """Return True if the policy matches a queue of this type, or an "exchange"."""
        return type in self.targets and self.expression.matches(name)

    def outranks(self, other: Policy) -> bool:
        return self.rank < other.rank

    @property
    def rank(self) -> tuple[float, str]:
        """The sort key: of all matching policies the lowest one applies."""
        return -self.priority, self.name

    def values(self) -> dict[str, Any]:
        """Return the policy as in RabbitMQ's API and definitions files."""
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
    """Validate a policy. InvalidPolicy lists all faults, in RabbitMQ's words and order."""
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
    if not 0 < len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
        faults.append(f"a policy needs a name of at most {MAX_NAME_BYTES} bytes")
    faults = [fault for fault in faults if fault]
    if faults or expression is None:
        raise InvalidPolicy("\n".join(("Validation failed\n", *faults, "")))
    return Policy(vhost, name, pattern, apply_to, priority, definition, find_targets(apply_to, definition), expression)


def _is_number(value: Any) -> bool:
    return (is_integer(value) and abs(value) <= MAX_INTEGER) or (isinstance(value, float) and math.isfinite(value))


def restore_policy(definition: Mapping[str, Any], is_operator: bool) -> tuple[Policy, str]:
    """Return a policy of the catalog, and why it is not valid, if so: it is then kept but applies to nothing."""
    name, kept = definition["name"], definition["arguments"]
    pattern, settings = kept.get("pattern", ""), kept.get("definition", {})
    priority, apply_to = kept.get("priority", 0), kept.get("apply-to", DEFAULT_APPLY_TO)
    try:
        return parse_policy(definition["vhost"], name, pattern, settings, priority, apply_to, is_operator), ""
    except InvalidPolicy as error:
        reason = ", ".join(str(error).split("\n")[2:-1])
        nothing: frozenset[str] = frozenset()
        return Policy(definition["vhost"], name, pattern, apply_to, priority, settings, nothing, Pattern("")), reason


class PolicyList:
    """Policies of one kind, in matching order."""

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
        """Return the policy that applies to this type and name."""
        for matches, policy in self._by_type.get(type, ()):
            if matches(name):
                return policy
        return None


@dataclass(frozen=True, slots=True)
class AppliedPolicies:
    """The policies that apply to one queue or exchange."""

    policy: Policy | None = None
    operator_policy: Policy | None = None

    def definition(self) -> dict[str, Any]:
        """Return the settings of both together."""
        return merge_definitions(*self._definitions())

    def queue_options(self, is_durable: bool, arguments: Mapping[str, Any]) -> QueueOptions:
        return queue_options(is_durable, self.queue_arguments(arguments))

    def queue_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if self is NO_POLICIES:
            return arguments
        return merge_queue_arguments(queue_type_of(arguments), arguments, *self._definitions())

    def exchange_options(self, type: str, arguments: Mapping[str, Any]) -> ExchangeOptions:
        return exchange_options(type, merge_exchange_arguments(arguments, *self._definitions()))

    def _definitions(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        policy, operator = self.policy, self.operator_policy
        return {} if policy is None else policy.definition, {} if operator is None else operator.definition


NO_POLICIES = AppliedPolicies()


def find_policies(policies: PolicyList, operator_policies: PolicyList, type: str, name: str) -> AppliedPolicies:
    """Return the policies that apply to a queue of this type and name, or to an exchange."""
    if not _can_have_policies(name):
        return NO_POLICIES
    policy, operator_policy = policies.find(type, name), operator_policies.find(type, name)
    return NO_POLICIES if policy is None and operator_policy is None else AppliedPolicies(policy, operator_policy)


def _can_have_policies(name: str) -> bool:
    return name != DEFAULT_EXCHANGE and not reserved.is_reserved(name)


def restore_policy_lists(
    snapshot: Mapping[str, Iterable[Mapping[str, Any]]],
) -> dict[str, tuple[PolicyList, PolicyList]]:
    """Return policies and operator policies by virtual host, as the catalog has them."""
    found: dict[str, tuple[PolicyList, PolicyList]] = {}
    for is_operator, kind in enumerate((POLICY, OPERATOR_POLICY)):
        for definition in snapshot.get(kind, ()):
            lists = found.setdefault(definition["vhost"], (PolicyList(), PolicyList()))
            lists[is_operator].put(restore_policy(definition, bool(is_operator))[0])
    return found


@dataclass(slots=True)
class _Change:
    """A change in progress: `new` replaces `old` (None: no policy) at all targets; `targets` are those left. Of an idle
    queue it is the name.

    Queues with the same policies share a pair, keyed by the identities of the two, and their options.
    """

    is_operator: bool
    old: Policy | None
    new: Policy | None
    targets: Iterator[Target | str]
    pairs: dict[tuple[int, int], AppliedPolicies] = field(default_factory=dict)
    options: dict[Any, QueueOptions] = field(default_factory=dict)

    def pair_of(self, policy: Policy | None, operator_policy: Policy | None) -> AppliedPolicies:
        key = id(policy), id(operator_policy)
        pair = self.pairs.get(key)
        if pair is None:
            pair = (
                NO_POLICIES if policy is None and operator_policy is None else AppliedPolicies(policy, operator_policy)
            )
            self.pairs[key] = pair
        return pair


class Policies:
    """The policies of one virtual host, and the queues and exchanges they apply to."""

    def __init__(self, vhost: VHost) -> None:
        self._vhost = vhost
        self._changes: deque[_Change] = deque()  # in progress, one after the other
        self._lists = {POLICY: PolicyList(), OPERATOR_POLICY: PolicyList()}
        self._applied: dict[Target, AppliedPolicies] = {}  # of targets to which one applies

    # -- policies ----------------------------------------------------------------------------------------------------

    def list(self, is_operator: bool = False) -> Sequence[Policy]:
        """Return all policies, highest priority first."""
        return [*self._list(is_operator)]

    def get(self, name: str, is_operator: bool = False) -> Policy | None:
        return self._list(is_operator).get(name)

    def set(
        self,
        name: str,
        pattern: Any,
        definition: Any,
        priority: Any = 0,
        apply_to: Any = DEFAULT_APPLY_TO,
        is_operator: bool = False,
    ) -> bool:
        """Add or replace a policy and apply it, in this turn and, with many targets, in the next ones.

        Return True if it is new. If it is invalid (InvalidPolicy), nothing is changed.
        """
        policy = parse_policy(self._vhost.name, name, pattern, definition, priority, apply_to, is_operator)
        policies = self._list(is_operator)
        old = policies.get(name)
        if old == policy and old.targets == policy.targets:
            return False
        if old is None and len(policies) >= MAX_POLICIES:
            raise InvalidPolicy(f"there are {MAX_POLICIES} policies already, which is the most of a virtual host")
        kept = {key: value for key, value in policy.values().items() if key not in ("vhost", "name")}
        saved = {"vhost": policy.vhost, "name": name, "arguments": kept}
        self._vhost.broker.catalog.save(_kind(is_operator), (policy.vhost, name), saved)
        policies.put(policy)
        if ignored := keys_without_effect(policy.definition):
            self._vhost.broker.warning_log.warn(
                "policy", f"{_describe(policy, is_operator)} has keys without effect: {', '.join(ignored)}"
            )
        self._changed(is_operator, old, policy)
        return old is None

    def clear(self, name: str, is_operator: bool = False) -> bool:
        """Remove a policy and apply the change as `set` does. Return False if there was none."""
        policies = self._list(is_operator)
        old = policies.get(name)
        if old is None:
            return False
        self._vhost.broker.catalog.delete(_kind(is_operator), (self._vhost.name, name))
        policies.remove(name)
        self._changed(is_operator, old, None)
        return True

    def delete_all(self) -> None:
        """Remove all policies: the virtual host is deleted with everything in it."""
        for kind, policies in self._lists.items():
            for policy in [*policies]:
                self._vhost.broker.catalog.delete(kind, (policy.vhost, policy.name))
                policies.remove(policy.name)

    def restore(self, definition: Mapping[str, Any], is_operator: bool) -> None:
        """Restore a policy from the catalog; called before queues and exchanges are restored."""
        policy, reason = restore_policy(definition, is_operator)
        self._list(is_operator).put(policy)
        if reason:
            self._vhost.broker.recovery_warnings.append(
                f"{_describe(policy, is_operator)} is not valid and not applied: {reason}"
            )
        self._changed(is_operator, None, policy)

    def _list(self, is_operator: bool) -> PolicyList:
        return self._lists[_kind(is_operator)]

    # -- what they apply to ------------------------------------------------------------------------------------------

    def of(self, target: Target) -> AppliedPolicies:
        """Return the policies that apply to a queue or exchange."""
        return self._applied.get(target, NO_POLICIES)

    def find(self, type: str, name: str) -> AppliedPolicies:
        """Return the policies for a new queue of this type and name, or a new exchange."""
        return find_policies(self._lists[POLICY], self._lists[OPERATOR_POLICY], type, name)

    def record(self, queue: Queue, applied: AppliedPolicies) -> None:
        """Record that a queue was created with these policies."""
        if applied is not NO_POLICIES:
            self._applied[queue] = applied
        self._warn_of_fallback(queue, applied)

    def apply_to(self, exchange: Exchange) -> None:
        """Apply the policies to a new exchange."""
        if len(self._lists[POLICY]) or len(self._lists[OPERATOR_POLICY]):
            self._set_applied(exchange, self.find(EXCHANGE, exchange.name), {})

    def forget(self, target: Target) -> None:
        """Drop a deleted queue or exchange."""
        self._applied.pop(target, None)

    def _changed(self, is_operator: bool, old: Policy | None, new: Policy | None) -> None:
        """Queue the change for all targets, after the changes in progress."""
        queues = self._vhost.queues
        targets: list[Target | str] = [*queues.made(), *queues.idle(), *self._vhost.exchanges.values()]
        self._changes.append(_Change(is_operator, old, new, iter(targets)))
        if len(self._changes) == 1:
            self._apply_changes()

    def _apply_changes(self) -> None:
        """Do one slice of the changes in progress, and schedule the rest for the next turns."""
        left = SLICE
        while self._changes:
            current = self._changes[0]
            for target in current.targets:
                if isinstance(target, str):
                    left -= self._apply_to_idle(target, current)
                elif self._is_there(target):
                    left -= self._apply_change(target, current)
                if left <= 0:
                    broker = self._vhost.broker
                    broker.timers.schedule(broker.turn.now_ms - RESOLUTION_MS, self._apply_changes)
                    return
            self._changes.popleft()

    def _apply_change(self, target: Target, change: _Change) -> int:
        """Apply a change to one target; return the cost, in pattern matches.

        Most targets take one match. Targets may already have policies that were set after this change.
        """
        now = self._applied.get(target, NO_POLICIES)
        current = now.operator_policy if change.is_operator else now.policy
        new = change.new
        cost = 1
        if current is not None and current is change.old:
            policies = self._list(change.is_operator)
            chosen = policies.find(_type_of(target), target.name)
            cost = len(policies)
        elif new is None or (current is not None and not new.outranks(current)):
            return cost
        elif new.matches(_type_of(target), target.name) and _can_have_policies(target.name):
            chosen = new
        else:
            return cost
        pair = change.pair_of(*((now.policy, chosen) if change.is_operator else (chosen, now.operator_policy)))
        self._set_applied(target, pair, change.options)
        return cost + APPLY_COST

    def _apply_to_idle(self, name: str, change: _Change) -> int:
        """Apply a change to a queue that was idle before it; return the cost. Idle queues have no policies."""
        queues = self._vhost.queues
        if change.new is None or not queues.is_idle(name) or not change.new.matches(CLASSIC, name):
            return 1
        queues.get(name)  # makes it, with the policies of now
        return 1 + APPLY_COST

    def _is_there(self, target: Target) -> bool:
        found = self._vhost.exchanges if isinstance(target, Exchange) else self._vhost.queues
        return found.get(target.name) is target

    def _set_applied(self, target: Target, applied: AppliedPolicies, known: dict[Any, QueueOptions]) -> None:
        if applied is NO_POLICIES:
            self._applied.pop(target, None)
        else:
            self._applied[target] = applied
        if isinstance(target, Exchange):
            routing = applied.exchange_options(target.type, target.arguments)
            if routing != target.options:
                self._vhost.apply(target, routing)
            return
        options = _options_of(target, applied, known)
        if options != target.options:
            self._vhost.apply(target, options)
            self._warn_of_fallback(target, applied)

    def _warn_of_fallback(self, queue: Queue, applied: AppliedPolicies) -> None:
        """Warn if at-least-once dead-lettering was requested but is not possible, as RabbitMQ does."""
        if queue.options.is_dead_letter_at_least_once or queue.options.dead_letter_exchange is None:
            return
        if applied.queue_arguments(queue.arguments).get("x-dead-letter-strategy") == "at-least-once":
            self._vhost.broker.warning_log.warn(
                "dead-letter-strategy",
                f"queue '{queue.name}' in vhost '{queue.vhost}' falls back to dead-letter-strategy at-most-once: "
                "at-least-once needs overflow reject-publish",
            )


def _options_of(queue: Queue, applied: AppliedPolicies, known: dict[Any, QueueOptions]) -> QueueOptions:
    """Return the options of a queue; queues with the same arguments share them through the cache `known`."""
    try:
        key = (id(applied), queue.is_durable, *queue.arguments.items(), *map(type, queue.arguments.values()))
        options = known.get(key)
    except TypeError:  # a table or an array among the arguments
        return applied.queue_options(queue.is_durable, queue.arguments)
    if options is None:
        options = known[key] = applied.queue_options(queue.is_durable, queue.arguments)
    return options


def _type_of(target: Target) -> str:
    return EXCHANGE if isinstance(target, Exchange) else target.options.type


def _kind(is_operator: bool) -> str:
    return OPERATOR_POLICY if is_operator else POLICY


def _describe(policy: Policy, is_operator: bool) -> str:
    return f"{_kind(is_operator).replace('_', ' ')} '{policy.name}' in vhost '{policy.vhost}'"
