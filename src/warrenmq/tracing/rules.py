"""Rules: which messages are traced.

A rule selects messages by patterns and traces a share of them (`ratio`); if several match, the largest ratio counts.
The choice depends on a hash of the message id, else of the correlation id, else it is random: a biography is kept whole
or not at all, also if the message is published again under the same id.

Rules are definitions like queues, stored in the catalog; a change is confirmed when it is as durable as a declared
queue, and applies from the next publish on. Rules from the broker's settings are fixed. A stored rule that is no longer
valid is disabled at the start with a warning, and stays listed.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from warrenmq.core.broker import Broker
from warrenmq.core.patterns import MAX_PATTERN_LENGTH, Pattern
from warrenmq.core.queue import Queue
from warrenmq.events.schema import STREAM_NAME

log = logging.getLogger("warrenmq.tracing")

KIND = "trace_rule"
# The name of the default exchange in permissions and rules.
DEFAULT_EXCHANGE = "amq.default"
EVERYTHING = "*"
PATTERNS = ("vhost", "exchange", "queue")
FIELDS = (*PATTERNS, "header", "ratio", "enabled")
MAX_NAME_BYTES = 255
# Each new route is matched with all rules, each message on it with the headers of those that match.
MAX_RULES = 1_000
MAX_HEADERS = 16
_INTEGERS = range(-(1 << 63), 1 << 63)  # of a header

# With one of these characters a pattern is a regular expression, otherwise a name.
_IS_EXPRESSION = re.compile(r"[*+?^$|\\()\[\]{}]")


@dataclass(frozen=True, slots=True)
class TraceRule:
    """A pattern of None matches everything. `header`: names and values that the headers of a message must have."""

    name: str
    vhost: str | None = None
    exchange: str | None = None
    queue: str | None = None
    header: Mapping[str, Any] = field(default_factory=dict)
    ratio: float = 1.0
    enabled: bool = True
    is_fixed: bool = False
    _compiled: dict[str, Pattern] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def keeps_any(self) -> bool:
        return self.enabled and self.ratio > 0

    def matches(self, vhost: str, exchange: str, queues: Iterable[str]) -> bool:
        """Return True if messages of this route match, headers aside."""
        if not self.matches_vhost(vhost) or not self._matches(self.exchange, exchange or DEFAULT_EXCHANGE):
            return False
        return self.queue is None or any(self._matches(self.queue, name) for name in queues)

    def matches_vhost(self, vhost: str) -> bool:
        return self._matches(self.vhost, vhost)

    def matches_headers(self, headers: Mapping[str, Any]) -> bool:
        return all(name in headers and self._is_value(wanted, headers[name]) for name, wanted in self.header.items())

    def _matches(self, pattern: str | None, name: str) -> bool:
        if pattern is None or pattern == EVERYTHING:
            return True
        if _IS_EXPRESSION.search(pattern) is None:
            return pattern == name
        compiled = self._compiled.get(pattern)
        if compiled is None:
            compiled = self._compiled[pattern] = Pattern(pattern)
        return compiled.matches(name)

    def _is_value(self, wanted: Any, value: Any) -> bool:
        if isinstance(wanted, str):
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            return isinstance(text, str) and self._matches(wanted, text)
        if isinstance(wanted, bool) or isinstance(value, bool):
            return wanted is value
        return bool(wanted == value)

    def definition(self) -> dict[str, Any]:
        """Return the rule as `parse_rule` takes it."""
        found = {"header": dict(self.header), "ratio": self.ratio, "enabled": self.enabled}
        return found | {name: pattern for name in PATTERNS if (pattern := getattr(self, name)) is not None}


def parse_rule(name: str, definition: Mapping[str, Any], is_fixed: bool = False) -> TraceRule:
    """Parse and check a definition. The text of ValueError is one line for the user."""
    if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise ValueError(f"a rule needs a name of at most {MAX_NAME_BYTES} bytes")
    unknown = sorted(set(definition) - set(FIELDS))
    if unknown:
        raise ValueError(f"a rule has no {unknown[0]!r}; it has {', '.join(FIELDS)}")
    ratio = definition.get("ratio", 1.0)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
        raise ValueError("ratio is a number from 0 to 1")
    enabled = definition.get("enabled", True)
    if not isinstance(enabled, bool):
        raise ValueError("enabled is true or false")
    vhost, exchange, queue = (_pattern_of(definition, each) for each in PATTERNS)
    return TraceRule(name, vhost, exchange, queue, _header_of(definition), float(ratio), enabled, is_fixed)


def rules_of_flag(value: str) -> list[TraceRule]:
    """Parse `--trace off|all|RATIO`. Raises ValueError."""
    if value == "off":
        return []
    try:
        ratio = 1.0 if value == "all" else float(value)
    except ValueError:
        ratio = math.nan
    if not 0 <= ratio <= 1:
        raise ValueError('"off", "all" or a number from 0 to 1')
    return [TraceRule("settings", ratio=ratio, is_fixed=True)] if ratio else []


def _pattern_of(definition: Mapping[str, Any], name: str) -> str | None:
    pattern = definition.get(name)
    if pattern is None or pattern == "" or pattern == EVERYTHING:
        return None
    if not isinstance(pattern, str):
        raise ValueError(f"{name} is a name or a pattern")
    _require_pattern(name, pattern)
    return pattern


def _header_of(definition: Mapping[str, Any]) -> dict[str, Any]:
    header = definition.get("header") or {}
    if not isinstance(header, Mapping) or not all(isinstance(name, str) and name for name in header):
        raise ValueError("header is an object of names and values")
    if len(header) > MAX_HEADERS:
        raise ValueError(f"header has {len(header)} names, at most {MAX_HEADERS} are allowed")
    for name, value in header.items():
        if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
            raise ValueError(f"the name of a header has at most {MAX_NAME_BYTES} bytes")
        if not isinstance(value, str | int | float | bool) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"the header {name!r} is compared with a text, a finite number, true or false")
        if isinstance(value, int) and value not in _INTEGERS:
            raise ValueError(f"the header {name!r} needs a number of at most 64 bits")
        if isinstance(value, str):
            _require_pattern(f"the header {name!r}", value)
    return dict(header)


def _require_pattern(what: str, pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ValueError(f"{what} has {len(pattern)} characters, at most {MAX_PATTERN_LENGTH} are allowed")
    if _IS_EXPRESSION.search(pattern) and pattern != EVERYTHING:
        try:
            Pattern(pattern)
        except ValueError as error:
            raise ValueError(f"{what} is no regular expression: {error}") from None


class RuleBook:
    """The rules of one broker. `on_change` is called after each change."""

    def __init__(self, broker: Broker, fixed: Sequence[TraceRule] = ()) -> None:
        self._broker = broker
        self._rules: dict[str, TraceRule] = {rule.name: rule for rule in fixed}
        self.on_change: Callable[[], None] = lambda: None
        self.schedule_turn: Callable[[], None] = lambda: None  # begins a turn and ends it soon
        for definition in broker.catalog.load(KIND):
            name = definition["name"]
            if name not in self._rules:
                self._rules[name] = _restore(name, definition["arguments"])

    def all(self) -> Sequence[TraceRule]:
        return list(self._rules.values())

    @property
    def is_keeping(self) -> bool:
        """Return True if any message may be traced."""
        return any(rule.keeps_any for rule in self._rules.values())

    def find(self, vhost: str, exchange: str, queues: list[Queue]) -> tuple[float, list[TraceRule]]:
        """Return the largest ratio for a route, and the rules that raise it for messages with certain headers."""
        names = [queue.name for queue in queues]
        if names == [STREAM_NAME]:
            return 0.0, []  # the event log is not traced itself
        found = [rule for rule in self._rules.values() if rule.keeps_any and rule.matches(vhost, exchange, names)]
        ratio = max((rule.ratio for rule in found if not rule.header), default=0.0)
        return ratio, [rule for rule in found if rule.header and rule.ratio > ratio]

    def keeps_vhost(self, vhost: str) -> bool:
        """Return True if events of connections, queues and exchanges are kept there, whatever the ratio."""
        return any(rule.keeps_any and rule.matches_vhost(vhost) for rule in self._rules.values())

    # -- changing ----------------------------------------------------------------------------------------------------

    async def put(self, name: str, definition: Mapping[str, Any]) -> bool:
        """Set a rule; return when it is durable, True if it is new."""
        rule = parse_rule(name, definition)
        self.schedule_turn()
        is_new = self.set(rule)
        await self._wait_until_durable()
        return is_new

    async def remove(self, name: str) -> bool:
        """Remove a rule; return when that is durable, False if there was none."""
        self.schedule_turn()
        if not self.forget(name):
            return False
        await self._wait_until_durable()
        return True

    def set(self, rule: TraceRule) -> bool:
        """Set a rule in the open turn; return True if it is new."""
        self._require_free(rule.name)
        is_new = rule.name not in self._rules
        if is_new and len(self._rules) >= MAX_RULES:
            raise ValueError(f"there are {MAX_RULES} rules already, the maximum")
        definition = {"name": rule.name, "arguments": rule.definition()}
        self._broker.catalog.save(KIND, (rule.name,), definition)
        self._rules[rule.name] = rule  # after the save, which may fail
        self.on_change()
        return is_new

    def forget(self, name: str) -> bool:
        self._require_free(name)
        if self._rules.pop(name, None) is None:
            return False
        self._broker.catalog.delete(KIND, (name,))
        self.on_change()
        return True

    def _require_free(self, name: str) -> None:
        rule = self._rules.get(name)
        if rule is not None and rule.is_fixed:
            raise ValueError(f"the rule {name!r} comes from the broker's settings and can only be changed there")

    async def _wait_until_durable(self) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broker.when_durable(done, self._broker.storage.log.reply_level, lambda: _complete(done))
        try:
            await done
        finally:
            self._broker.withdraw(done)


def _restore(name: str, definition: Mapping[str, Any]) -> TraceRule:
    """Parse a rule of the catalog; one that an older version accepted must not stop the broker."""
    try:
        return parse_rule(name, definition)
    except ValueError as error:
        log.warning("the trace rule %r is disabled, as it is not valid: %s", name, error)
        header = {key: str(value) for key, value in dict(definition.get("header") or {}).items()}
        vhost, exchange, queue = (definition.get(each) for each in PATTERNS)
        return TraceRule(name, vhost, exchange, queue, header, ratio=0.0, enabled=False)


def _complete(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
