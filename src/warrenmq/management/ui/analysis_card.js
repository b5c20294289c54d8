// The card of a job: title, choices, chart, and its rows as a table.

import { rowsTable } from "./analysis_table.js";
import { viewOf } from "./analysis_views.js";
import { el, show } from "./dom.js";

/** {element, update(rows)}; choices persist when the rows change. `linkTo`: as in viewOf. */
export function jobCard(about, linkTo) {
  const view = viewOf(about, linkTo);
  const chosen = {};
  const controls = el("div", { class: "row push choices" });
  const place = { chart: el("div", { class: "chart" }), note: el("div", { class: "notes muted", role: "note" }) };
  const rowsPlace = el("div");
  const details = el("details", { class: "rows" }, el("summary", {}, "Table"), rowsPlace);
  details.addEventListener("toggle", drawTable);
  const isTable = !["lines", "percentiles", "bars", "flow", "anomalies"].includes(about.chart);
  const element = el(
    "section",
    { class: `card job${view.isWide ? " wide" : ""}`, id: `job-${about.job}`, "aria-label": about.title, "aria-busy": "true" },
    el("div", { class: "row head" }, el("h2", {}, about.title), controls),
    view.about && el("p", { class: "muted" }, view.about),
    place.chart,
    place.note,
    !isTable && details,
  );
  let rows = [];
  let offered = "";

  function offer() {
    const choices = view.choices(rows);
    for (const { name, options } of choices) {
      if (!options.some(({ value }) => value === chosen[name])) chosen[name] = options[0]?.value;
    }
    const wanted = JSON.stringify(choices);
    if (wanted === offered) return; // do not redraw a list that may be open
    offered = wanted;
    show(controls, choices.filter(({ options }) => options.length > 1).map((choice) => select(choice)));
  }

  function select({ name, label, options }) {
    const list = el("select", { "aria-label": `${about.title}: ${label}`, name, onchange: choose }, options.map(({ value, text }) => el("option", { value, selected: value === chosen[name] }, text)));
    return el("label", { class: "choice" }, el("span", {}, label), list);

    function choose() {
      chosen[name] = list.value;
      if (name !== "measure") Object.assign(chosen, view.follow?.(chosen));
      for (const each of controls.querySelectorAll("select")) each.value = chosen[each.name];
      draw();
    }
  }

  async function draw() {
    const isDrawn = await view.draw(place, rows, chosen);
    if (!isDrawn) {
      // Without plotly, show the rows.
      show(place.chart, el("p", { class: "muted" }, "To see a chart, install plotly: ", el("code", {}, "pip install 'warrenmq[ui]'")));
      details.open = true;
    }
    drawTable();
    element.removeAttribute("aria-busy");
  }

  function drawTable() {
    if (details.open && !isTable) show(rowsPlace, rowsTable(rows, { linkTo }));
  }

  return {
    element,
    update(found) {
      rows = found;
      offer();
      return draw();
    },
  };
}
