// Finds messages and shows the biography of one. The search is in the URL, so that it can be shared.

import { get, query, url } from "./api.js";
import { badge, drawBiography } from "./biography.js";
import { el, show } from "./dom.js";
import { clock, duration, microseconds, size, zone } from "./format.js";
import { start } from "./frame.js";
import { during, empty } from "./states.js";
import { howToSwitchOn } from "./switch_on.js";
import { table } from "./table.js";

const KINDS = ["published", "unroutable", "returned", "enqueued", "delivered", "acked", "nacked", "rejected", "requeued", "retried", "expired", "dropped", "dead_lettered", "scheduled", "confirmed", "tx_committed", "tx_rolled_back", "republished"];
const TEXTS = [
  ["id", "Message id"],
  ["correlation_id", "Correlation id"],
  ["trace_id", "Trace id or traceparent"],
  ["queue", "Queue"],
  ["exchange", "Exchange"],
  ["routing_key", "Routing key"],
];
const AGES = [["", "Any time"], ["15m", "Last 15 minutes"], ["1h", "Last hour"], ["24h", "Last 24 hours"], ["7d", "Last 7 days"], ["between", "Between…"]];

start("Traces", (main) => {
  const results = el("div");
  const form = searchForm((parameters) => {
    history.pushState(null, "", location.pathname + query(parameters));
    look();
  });
  const look = () => {
    const parameters = Object.fromEntries(new URLSearchParams(location.search));
    form.fill(parameters);
    return during(results, () => (parameters.id ? biography(parameters.id) : search(parameters)));
  };
  addEventListener("popstate", look);
  main.addEventListener("click", (event) => followLink(event, look));
  show(main, form.element, results);
  return look();
});

// -- the form

function searchForm(submit) {
  const inputs = Object.fromEntries(TEXTS.map(([name]) => [name, el("input", { name, spellcheck: "false", autocomplete: "off" })]));
  inputs.id.placeholder = "message-id of the publisher, or uid of the broker";
  inputs.kind = el("select", { name: "kind" }, el("option", { value: "" }, "Any event"), KINDS.map((kind) => el("option", { value: kind }, kind.replaceAll("_", "-"))));
  const age = el("select", { name: "age", onchange: showTimes }, AGES.map(([value, text]) => el("option", { value }, text)));
  const from = el("input", { type: "datetime-local", step: "1", name: "from" });
  const to = el("input", { type: "datetime-local", step: "1", name: "to" });
  const between = [field(`From (${zone()})`, from), field(`To (${zone()})`, to)];
  const clear = el("button", { type: "button", onclick: () => submit({}) }, "Clear");
  const more = [...TEXTS.slice(1).map(([name, title]) => field(title, inputs[name])), field("Event", inputs.kind), field("Time", age), ...between];
  const details = el("details", {}, el("summary", {}, "Search by other properties"), el("div", { class: "fields" }, more));
  const first = el("div", { class: "row bottom" }, el("label", { class: "field grow" }, el("span", {}, "Message id"), inputs.id), el("button", { class: "main" }, "Search"), clear);
  const element = el("form", { class: "card", onsubmit: send, role: "search" }, el("h1", {}, "Find messages"), first, details);

  function showTimes() {
    for (const each of between) each.hidden = age.value !== "between";
  }

  function send(event) {
    event.preventDefault();
    if (inputs.id.value.trim()) return submit({ id: inputs.id.value.trim() });
    const given = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value.trim()]));
    submit({ ...given, ...times() });
  }

  function times() {
    if (age.value !== "between") return { from: age.value };
    return { from: utc(from.value), to: utc(to.value) };
  }

  function fill(parameters) {
    for (const [name, input] of Object.entries(inputs)) input.value = parameters[name] ?? "";
    const isAge = AGES.some(([value]) => value === (parameters.from ?? ""));
    age.value = isAge && !parameters.to ? (parameters.from ?? "") : "between";
    from.value = local(parameters.from);
    to.value = local(parameters.to);
    details.open = !parameters.id;
    showTimes();
  }

  return { element, fill };
}

const field = (title, input) => el("label", { class: "field" }, el("span", {}, title), input);
const utc = (text) => (text ? new Date(text).toISOString() : "");
const local = (text) => (text && !Number.isNaN(Date.parse(text)) ? clock(new Date(text).toISOString()).replace(" ", "T").slice(0, 19) : "");

// -- results

async function search(parameters) {
  const { traces, next, tracing } = await get("/api/traces" + query(parameters));
  const isNarrow = Object.keys(parameters).length > 0;
  if (!traces.length && next) {
    const further = el("a", { class: "button main", href: "traces.html" + query({ ...parameters, cursor: next }) }, "Search older events");
    return el("div", { class: "card" }, empty("No match so far", el("p", {}, "Older events have not been searched yet."), el("div", { class: "row" }, further)));
  }
  if (!traces.length) {
    return el("div", { class: "card" }, empty(isNarrow ? "No matching messages" : "No messages recorded yet", howToSwitchOn(tracing)));
  }
  const older = next && el("a", { class: "button", href: "traces.html" + query({ ...parameters, cursor: next }) }, "Older");
  const newest = parameters.cursor && el("a", { class: "button", href: "traces.html" + query({ ...parameters, cursor: "" }) }, "Newest");
  return el(
    "section",
    { class: "card" },
    el("h2", {}, isNarrow ? "Messages found" : "Latest messages"),
    table(COLUMNS, traces),
    (older || newest) && el("div", { class: "more" }, newest, older),
  );
}

const COLUMNS = [
  { title: `First event (${zone()})`, kind: "time", value: ({ first_time }) => el("span", { title: first_time }, clock(first_time)) },
  { title: "Message", kind: "name", value: ({ message_id }) => el("a", { href: "traces.html" + query({ id: message_id }), class: "mono" }, message_id) },
  { title: "Exchange", kind: "name", value: ({ exchange }) => exchange || "(default)" },
  { title: "Routing key", kind: "name", value: ({ routing_key }) => routing_key ?? "–" },
  { title: "Queues", kind: "name", value: ({ queues }) => queues.join(", ") || "–" },
  { title: "Size", kind: "number", value: (trace) => size(trace.size) },
  { title: "Events", kind: "number", value: ({ events }) => events },
  { title: "Duration", kind: "number", value: ({ first_time, last_time }) => duration(microseconds(last_time) - microseconds(first_time)) },
  { title: "Last event", value: ({ last_kind }) => badge(last_kind) },
];

async function biography(id) {
  try {
    return drawBiography(await get(url`/api/traces/${id}`));
  } catch (error) {
    if (error.status !== 404) throw error;
    const { tracing } = await get("/api/trace-rules");
    return el("div", { class: "card" }, empty("No events of this message", el("p", { class: "mono any" }, id), howToSwitchOn(tracing)));
  }
}

// Open links between messages without loading the page again.
function followLink(event, look) {
  const target = event.target.closest("a[href^='/ui/traces.html']");
  if (!target || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  history.pushState(null, "", target.getAttribute("href"));
  look();
  scrollTo(0, 0);
}
