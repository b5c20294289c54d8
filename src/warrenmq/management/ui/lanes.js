// A biography as lanes: one for the publisher's side, one for each queue, with the times in which the message waited there
// or was with a consumer. Both drawings (chart.js, timeline_svg.js) draw this.

import { clock, duration, group, microseconds, why, words } from "./format.js";

const UNITS = [
  [1e4, 1, "µs"],
  [1e7, 1e3, "ms"],
  [6e8, 1e6, "s"],
  [3.6e10, 6e7, "min"],
  [Infinity, 3.6e9, "h"],
];

/** {lanes: [{name, spans, events}], unit, begin, length}; positions are in `unit` since the first event.
 *  A span that `isLost` is drawn pale: its real length is unknown. */
export function lanesOf(biography, now = Date.now() * 1000) {
  const begin = microseconds(biography.events[0].time);
  const spans = biography.legs.flatMap((leg) => leg.spans.map((span) => ({ ...span, lane: laneOf(leg) })));
  const ends = [...biography.events.map(({ time }) => microseconds(time)), ...spans.map(({ end }) => microseconds(end) ?? now)];
  const length = Math.max(...ends) - begin;
  const [, scale, unit] = UNITS.find(([below]) => length < below);
  const at = (us) => (us - begin) / scale;
  const lanes = new Map();
  for (const event of biography.events) {
    if (event.kind === "routed" && event.queue !== undefined) continue; // it would hide that it is dead-lettered
    lane(lanes, laneOf(event)).events.push({ at: at(microseconds(event.time)), group: meaning(event), lines: eventLines(event) });
  }
  for (const span of spans) {
    const from = microseconds(span.begin);
    const until = microseconds(span.end) ?? now;
    const { spans: drawn, events: marks } = lane(lanes, span.lane);
    const isLost = span.outcome === "lost";
    drawn.push({ kind: span.kind, isLost, from: at(from), until: at(until), lines: spanLines(span, until - from) });
    if (isLost) marks.push({ at: at(until), group: group("lost"), lines: ["lost", "the broker stopped meanwhile", labelled("consumer", span.consumer)].filter(Boolean) });
  }
  return { lanes: [...lanes.values()], unit, length: at(begin + length), begin: biography.events[0].time };
}

// To a consumer that does not ack, a delivery is the end.
const meaning = ({ kind, reason }) => (reason === "auto_ack" ? "ok" : group(kind));
const laneOf = ({ queue }) => queue ?? "";

function lane(lanes, key) {
  if (!lanes.has(key)) lanes.set(key, { name: key || "publisher", isQueue: key !== "", spans: [], events: [] });
  return lanes.get(key);
}

function eventLines(event) {
  const since = event.latency_us === undefined ? null : `${duration(event.latency_us)} after publish`;
  return [words(event.kind), clock(event.time), since, labelled("consumer", event.consumer), labelled("attempt", event.attempt), why(event)].filter(Boolean);
}

function spanLines(span, length) {
  if (span.outcome === "lost") return ["with a consumer when the broker stopped", `at most ${duration(length)}`, labelled("consumer", span.consumer), labelled("attempt", span.attempt)].filter(Boolean);
  const end = span.end ? `until ${span.outcome ? words(span.outcome) : "its end"}` : "not ended yet";
  return [`${span.kind} ${duration(length)}`, end, labelled("consumer", span.consumer), labelled("attempt", span.attempt)].filter(Boolean);
}

const labelled = (name, value) => (value === undefined || value === null || value === "" ? null : `${name} ${value}`);
