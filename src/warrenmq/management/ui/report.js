// The report of `warren analyze --report`: the same cards as on the analysis page, over rows that lie in the file itself.
// pipeline/publish/report.py puts the modules into an import map of the file; nothing here may ask a server for anything.

import { jobCard } from "./analysis_card.js";
import { isTime, moment } from "./analysis_values.js";
import { ORDER } from "./analysis_views.js";
import { el, show } from "./dom.js";
import { zone } from "./format.js";

const { about, answers } = JSON.parse(document.getElementById("data").textContent);

const rank = ({ job }) => (ORDER.includes(job) ? ORDER.indexOf(job) : ORDER.length);
const sorted = [...answers].sort((one, other) => rank(one) - rank(other) || one.job.localeCompare(other.job));
const cards = sorted.map((answer) => ({ answer, card: jobCard(answer, () => null) }));

const button = el("button", { type: "button", class: "small", title: "Switch between light and dark", onclick: () => window.warrenTheme.switch() }, "Light or dark");
const text = (value) => (Array.isArray(value) ? value.map(text).join(" – ") : isTime(value) ? `${moment(value)} (${zone()})` : typeof value === "number" ? value.toLocaleString("en") : String(value));
const facts = Object.entries(about).filter(([, value]) => value !== null && value !== "").flatMap(([name, value]) => [el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, text(value))]);

show(
  document.body,
  el("header", { class: "top" }, el("span", { class: "brand" }, "WarrenMQ analysis"), el("div", { class: "who" }, button)),
  el(
    "main",
    {},
    el("section", { class: "card" }, el("h1", {}, "Analysis of messages"), el("dl", { class: "facts" }, facts), el("p", { class: "muted report-hint" }, "Events of a single message: ", el("code", {}, "warren trace ID"), " with one of the ids below.")),
    el("nav", { class: "links", "aria-label": "Jobs" }, cards.map(({ answer, card }) => el("a", { href: `#${card.element.id}` }, answer.title))),
    el("div", { class: "jobs" }, cards.map(({ card }) => card.element)),
    !cards.length && el("p", {}, "No results: no job was run, or there were no events."),
  ),
);

for (const { answer, card } of cards) {
  if (answer.left_out) card.element.append(el("p", { class: "muted" }, `${answer.left_out.toLocaleString("en")} older rows are not included in this file.`));
  card.update(answer.rows);
}
