// The biography of a message: figures, timeline, queues, events.

import { query } from "./api.js";
import { timeline } from "./chart.js";
import { el } from "./dom.js";
import { ahead, clock, duration, group, microseconds, moment, removedSome, size, why, words, zone } from "./format.js";
import { lanesOf } from "./lanes.js";
import { table } from "./table.js";

/** The biography as nodes. */
export function drawBiography(biography) {
  const { events, legs } = biography;
  const chart = el("div", { class: "chart" });
  // The chart needs its width, so it is drawn once it is in the page.
  queueMicrotask(() => requestAnimationFrame(() => timeline(chart, lanesOf(biography))));
  return [
    el("h1", { class: "any" }, "Message ", el("span", { class: "mono" }, biography.message_id)),
    ...present(biography).map((line) => el("div", { class: "notice present" }, line)),
    biography.truncated && el("div", { class: "notice" }, `Truncated: ${biography.hint}.`),
    biography.complete || biography.truncated ? null : el("div", { class: "notice" }, "Incomplete: the first events of this message are not recorded, or it is still in a queue or with a consumer."),
    legs.some(({ spans }) => spans.some(({ outcome }) => outcome === "lost")) && el("div", { class: "notice" }, "The broker stopped while a consumer had this message. That processing time is unknown and not counted."),
    events.some(removedSome) && el("div", { class: "notice" }, "Messages of a queue were removed on disk without being read. It is unknown whether this message was among them."),
    figures(biography),
    el("section", { class: "card" }, el("h2", {}, "Properties"), facts(biography)),
    el("section", { class: "card" }, el("h2", {}, "Timeline"), chart),
    legs.length ? el("section", { class: "card" }, el("h2", {}, "Queues"), table(legColumns(legs), legs)) : null,
    el("section", { class: "card" }, el("h2", {}, "Events"), table(eventColumns(events), events)),
  ];
}

export const badge = (kind) => el("span", { class: `kind ${group(kind)}` }, words(kind));

// Where the message is now, and for how long: a line for each queue that still has it.
function present({ legs, now }) {
  const open = legs.flatMap((leg) => leg.spans.filter(({ end }) => end === null).map((span) => [leg, span]));
  return open.map(([leg, span]) => `Now ${place(leg, span, now)}, for ${duration(Math.max(0, microseconds(now) - microseconds(span.begin)))}.`);
}

function place({ queue }, { kind, consumer, attempt, due, retry_max }, now) {
  if (kind === "processing") return consumer ? `with consumer ${consumer} of ${queue}` : `fetched from ${queue}`;
  if (kind !== "delayed") return `waiting in ${queue}`;
  const left = microseconds(due) - microseconds(now);
  const when = left > 0 ? `due in ${ahead(left)}` : "due now";
  return queue === SCHEDULE ? `scheduled for ${moment(due, now)}, ${when}` : `waiting in ${queue} for retry ${attempt} of ${retry_max}, ${when}`;
}

// What stands for the schedule of a virtual host in events.
const SCHEDULE = "warren.scheduled";

function figures({ events, legs }) {
  const sum = (name) => (legs.some((leg) => leg[name] !== null) ? legs.reduce((total, leg) => total + (leg[name] ?? 0), 0) : null);
  const length = microseconds(events.at(-1).time) - microseconds(events[0].time);
  const deliveries = events.filter(({ kind }) => kind === "delivered").length;
  return el(
    "div",
    { class: "figures" },
    figure(duration(length), "first to last event"),
    figure(duration(sum("waiting_us")), "waiting in queues", "waiting"),
    figure(duration(sum("processing_us")), "with consumers", "processing"),
    sum("delayed_us") === null ? null : figure(duration(sum("delayed_us")), "scheduled or before a retry", "delayed"),
    figure(String(deliveries), deliveries === 1 ? "delivery" : "deliveries"),
    figure(words(events.at(-1).kind), "last event"),
  );
}

const figure = (value, meaning, colour) => el("div", { class: "figure" }, el("b", {}, value), el("span", {}, colour && el("i", { class: colour }), meaning));

function facts({ uid, message_id, events }) {
  const first = events[0];
  const listed = [
    ["Published", clock(first.publish_time ?? first.time) + ` (${zone()})`],
    ["Uid", uid !== message_id && uid],
    ["Virtual host", first.vhost],
    ["Exchange", first.exchange === "" ? "(default)" : first.exchange],
    ["Routing key", first.routing_key],
    ["Size", first.size === undefined ? null : size(first.size)],
    // Other messages of the biography may have another priority.
    ["Priority", events.find((event) => event.uid === uid && hasPriority(event))?.priority],
    ["Correlation id", first.correlation_id && link({ correlation_id: first.correlation_id }, first.correlation_id)],
    ["Trace id", first.trace_id && link({ trace_id: first.trace_id }, first.trace_id)],
    ["Source message", first.source_uid && link({ id: first.source_uid }, first.source_uid)],
    ["Connection", first.connection],
  ].filter(([, value]) => value);
  return el("dl", { class: "facts" }, listed.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]).flat());
}

const link = (parameters, text) => el("a", { href: "traces.html" + query(parameters), class: "mono" }, text);

const legColumns = (legs) => (legs.some(({ delayed_us }) => delayed_us !== null) ? LEG_COLUMNS : LEG_COLUMNS.filter((column) => column !== DELAYED));
const DELAYED = { title: "Delayed", kind: "number", value: ({ delayed_us }) => duration(delayed_us) };

const LEG_COLUMNS = [
  { title: "Queue", kind: "name", value: ({ queue }) => queue },
  { title: "Waiting", kind: "number", value: ({ waiting_us }) => duration(waiting_us) },
  { title: "Processing", kind: "number", value: ({ processing_us }) => duration(processing_us) },
  DELAYED,
  { title: "Deliveries", kind: "number", value: ({ deliveries }) => deliveries },
  { title: "Consumers", kind: "name", value: ({ consumers }) => consumers.join(", ") || "–" },
  { title: "Outcome", value: ({ outcome }) => badge(outcome) },
];

function eventColumns(events) {
  const day = (event) => clock(event.time).slice(0, 10);
  const withDay = day(events[0]) !== day(events.at(-1));
  // A single priority is shown above; if messages of the biography differ, each event shows its own.
  const isMixed = new Set(events.filter(({ uid }) => uid).map(({ priority }) => priority)).size > 1;
  const columns = isMixed ? EVENT_COLUMNS : EVENT_COLUMNS.filter((column) => column !== PRIORITY);
  return [{ title: `Time (${zone()})`, kind: "time", value: ({ time }) => el("span", { title: time }, clock(time, withDay)) }, ...columns];
}

const hasPriority = ({ priority }) => priority !== undefined;
const PRIORITY = { title: "Priority", kind: "number", value: ({ priority }) => priority ?? "–" };

const EVENT_COLUMNS = [
  { title: "Since publish", kind: "number", value: ({ latency_us }) => duration(latency_us) },
  { title: "Event", value: ({ kind }) => badge(kind) },
  { title: "Queue", kind: "name", value: ({ queue }) => queue ?? "–" },
  { title: "Consumer", kind: "name", value: ({ consumer }) => consumer ?? "–" },
  PRIORITY,
  { title: "Attempt", kind: "number", value: ({ attempt }) => attempt ?? "–" },
  { title: "Details", kind: "name", value: (event) => why(event) || "–" },
  { title: "Connection", kind: "whole", value: ({ connection, channel }) => (connection ? connection + (channel ? ` (${channel})` : "") : "–") },
];
