// Explains how to switch tracing on, where there are no events.

import { el } from "./dom.js";

/** The hint below an empty result, by the state of tracing (GET /api/trace-rules). */
export function howToSwitchOn(tracing) {
  if (tracing.failure) return el("div", { class: "notice failed hint" }, "The event log failed, no events are recorded: ", tracing.failure);
  if (tracing.enabled) return el("p", {}, "Tracing is on. Messages are recorded if a ", rules("trace rule"), " matched them when they were published.");
  return el(
    "div",
    { class: "hint" },
    el("p", {}, "Tracing is off, no events are recorded. Start the broker with tracing of all messages, or of a sample:"),
    el("pre", {}, "warren serve --trace all\nwarren serve --trace 0.01"),
    el("p", {}, "or add a rule now:"),
    el("div", { class: "row" }, el("a", { class: "button main", href: "trace_rules.html?new" }, "Add rule")),
  );
}

const rules = (text) => el("a", { href: "trace_rules.html" }, text);
