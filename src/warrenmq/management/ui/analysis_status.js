// State of the analysis: running, ended, silent; and the age of its newest results.

import { amount, moment } from "./analysis_values.js";
import { el } from "./dom.js";
import { zone } from "./format.js";

/** Problems, shown above the results. */
export function notices({ jobs, status, behind, skipped, complaint, tracing }) {
  return [
    jobs.length > 0 && behind > 0 && el("div", { class: "notice" }, `${amount("count", behind)} result messages are not read yet.`),
    jobs.length > 0 && tracing.failure && el("div", { class: "notice failed" }, "The event log failed, so there are no new results: ", tracing.failure),
    jobs.length > 0 && !tracing.failure && tracing.enabled === false && el("div", { class: "notice" }, "Tracing is off, so there are no new results. Switch it on with a ", el("a", { href: "trace_rules.html?new" }, "trace rule"), "."),
    stale(status, jobs),
    status?.state === "failed" && el("div", { class: "notice failed" }, "The analysis failed: ", status.error ?? "no reason given"),
    skipped > 0 && el("p", { class: "muted" }, `${amount("count", skipped)} messages of the stream warren.analysis are not results and were skipped. The last one: ${complaint}.`),
  ];
}

/** The state of the analysis in one line. */
export const statusLine = ({ jobs, status }) => jobs.length > 0 && el("p", { class: "muted facts-line" }, described(status, jobs));

// A silent follower has stopped, or cannot reach the broker.
function stale(status, jobs) {
  const youngest = jobs.reduce((min, { age_seconds }) => Math.min(min, age_seconds), Infinity);
  const isFollowing = status ? status.mode === "follow" && status.state === "running" : jobs.some(({ mode }) => mode === "follow");
  const age = Math.min(status?.age_seconds ?? Infinity, youngest); // its last status or results
  if (!isFollowing || !(age > 30)) return null;
  const long = age < 60 ? "more than 30 s" : amount("seconds", Math.floor(age / 60) * 60);
  return el("div", { class: "notice" }, el("b", {}, "These results are stale. "), `warren analyze --follow has not reported for ${long}: it has stopped, or cannot reach the broker. Start it again; with --checkpoint it continues where it stopped.`);
}

function described(status, jobs) {
  const youngest = jobs.reduce((min, { age_seconds }) => Math.min(min, age_seconds), Infinity);
  const parts = [];
  if (status) {
    parts.push(el("span", { class: `kind ${status.silent ? "warn" : status.state === "failed" ? "bad" : status.state === "running" ? "ok" : "quiet"}` }, words(status)));
    if (typeof status.events === "number") parts.push(`${amount("count", status.events)} events`);
    if (typeof status.batches === "number" && status.mode === "follow") parts.push(`${amount("count", status.batches)} batches`);
    if (status.lag > 0) parts.push(`${amount("count", status.lag)} behind`);
  }
  if (Number.isFinite(youngest)) parts.push(`newest results ${youngest < 60 ? "" : "written "}${amount("seconds", Math.round(youngest))} ago`);
  const last = jobs.reduce((max, { written }) => (written > max ? written : max), "");
  if (last) parts.push(`at ${moment(last)} (${zone()})`);
  return parts.flatMap((part, at) => (at ? [" · ", part] : [part]));
}

function words({ mode, state, silent }) {
  if (silent) return "silent";
  if (state === "running") return mode === "follow" ? "following" : "running";
  return state ?? "unknown";
}
