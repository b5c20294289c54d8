// Anomalies as sentences, the newest first, each with example messages.

import { el } from "./dom.js";
import { clock } from "./format.js";
import { uidLinks } from "./analysis_table.js";
import { moment } from "./analysis_values.js";

const FIRST = 6; // shown without a click
const MAX = 100;
const LINKS = 5;
const SEVERE = 20; // robust standard deviations

/** Lists; `linkTo(uid)` returns the address of a message's biography, or null. */
export function anomalyList(rows, linkTo, isOpen) {
  if (!rows.length) return el("p", { class: "muted" }, "No anomalies in the time shown.");
  const ordered = [...rows].sort((one, other) => (other.window_start ?? "").localeCompare(one.window_start ?? "") || (other.score ?? 0) - (one.score ?? 0));
  const items = ordered.slice(0, MAX).map((row) => item(row, linkTo));
  const more = items.slice(FIRST);
  const left = ordered.length - items.length;
  return [
    el("ol", { class: "anomalies" }, items.slice(0, FIRST)),
    more.length > 0 && el("details", { class: "more-anomalies", open: isOpen }, el("summary", {}, `${more.length} earlier`), el("ol", { class: "anomalies" }, more)),
    left > 0 && el("p", { class: "muted" }, `${left.toLocaleString("en")} older ones are not shown.`),
  ];
}

function item(row, linkTo) {
  const severity = (Math.abs(row.score) || 0) >= SEVERE ? "bad" : "warn";
  const uids = Array.isArray(row.example_uids) ? row.example_uids.filter((uid) => typeof uid === "string") : [];
  return el(
    "li",
    {},
    el("time", { datetime: row.window_start, title: row.window_start && clock(row.window_start) }, row.window_start ? moment(row.window_start) : "–"),
    el("div", {}, el("span", { class: `kind ${severity} any` }, row.sentence ?? `${row.what} ${row.name}: ${row.measure}`), uids.length > 0 && el("div", { class: "examples muted" }, uids.length === 1 ? "Message: " : "Messages: ", uidLinks(uids.slice(0, LINKS), linkTo))),
    typeof row.score === "number" && el("span", { class: "muted score", title: "deviation, in multiples of the usual spread" }, `score ${Number(row.score.toPrecision(3))}`),
  );
}
