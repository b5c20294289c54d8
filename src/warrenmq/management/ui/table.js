// A table of rows. A column is {title, value(row) -> text or node, kind: "number" | "time" | "name"}.

import { el } from "./dom.js";

export function table(columns, rows, caption) {
  const head = columns.map(({ title, kind }) => el("th", { scope: "col", class: kind }, title));
  return el(
    "div",
    { class: "table" },
    el(
      "table",
      {},
      caption && el("caption", {}, caption),
      el("thead", {}, el("tr", {}, head)),
      el("tbody", {}, rows.map((row) => el("tr", {}, columns.map(({ value, kind }) => el("td", { class: kind }, value(row)))))),
    ),
  );
}
