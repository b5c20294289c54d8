// How tracing is switched on, for where nothing is kept.

import { el } from "./dom.js";

/** What stands beneath "nothing found", as the state of tracing (GET /api/trace-rules) has it. */
export function howToSwitchOn(tracing) {
  if (tracing.failure) return el("div", { class: "notice failed hint" }, "The event log has failed, so nothing is kept: ", tracing.failure);
  if (tracing.enabled) return el("p", {}, "Messages are kept as the ", rules("trace rules"), " say, from the moment that a rule is there.");
  return el(
    "div",
    { class: "hint" },
    el("p", {}, "Tracing is off: the broker keeps no events. Switch it on for all messages, or for a sample, when it starts:"),
    el("pre", {}, "warren serve --trace all\nwarren serve --trace 0.01"),
    el("p", {}, "or now, for some messages, with a rule:"),
    el("div", { class: "row" }, el("a", { class: "button main", href: "trace_rules.html?new" }, "Add a rule")),
  );
}

const rules = (text) => el("a", { href: "trace_rules.html" }, text);
