// Any rows as a table: columns as they come, numbers with their units, the newest window first.

import { el } from "./dom.js";
import { heading, isTime, moment, shown, varies } from "./analysis_values.js";
import { table } from "./table.js";

const MOST = 100;

/**
 * A table of the newest rows. `columns` are those to be shown, all if there are none; `cells` draws some of them;
 * `linkTo(uid)` returns the address of a message's biography, or null.
 */
export function rowsTable(rows, { columns, cells = {}, sort, linkTo = () => null } = {}) {
  const ordered = sort ? [...rows].sort(sort) : [...rows].reverse();
  const few = ordered.slice(0, MOST);
  const names = columns ? [...(rows.length && varies(rows, "vhost") ? ["vhost"] : []), ...columns] : columnsOf(rows);
  const left = rows.length - few.length;
  return [table(names.map((name) => column(name, few, cells[name], linkTo)), few), left > 0 && el("p", { class: "muted" }, `${left.toLocaleString("en")} more rows are not shown.`)];
}

// The end of a window says nothing that its start does not; a virtual host that all rows share neither.
function columnsOf(rows) {
  const names = [...new Set(rows.slice(0, 200).flatMap((row) => Object.keys(row)))].filter((name) => name !== "window_end");
  return rows.length ? names.filter((name) => name !== "vhost" || varies(rows, name)) : names;
}

function column(name, rows, cell, linkTo) {
  const values = rows.map((row) => row[name]).filter((value) => value !== null && value !== undefined);
  const title = name === "window_start" ? "window" : heading(name);
  if (cell) return { title, value: (row) => cell(row[name], row) };
  if (/(^|_)uids?$/.test(name)) return { title, kind: "whole", value: (row) => uidLinks(row[name], linkTo) };
  if (isTime(values[0])) return { title, kind: "time", value: timeCell(name, values) };
  return { title, kind: typeof values[0] === "number" ? "number" : "name", value: (row) => shown(name, row[name]) };
}

// The day is said where it is not the same in all rows.
function timeCell(name, values) {
  const withDay = new Set(values.map((value) => moment(String(value)).slice(0, 10))).size > 1;
  return (row) => (isTime(row[name]) ? el("span", { title: moment(row[name]) }, withDay ? moment(row[name]) : moment(row[name]).slice(11)) : "–");
}

/** Ids of messages, as links where they lead somewhere. */
export function uidLinks(value, linkTo) {
  const uids = (Array.isArray(value) ? value : [value]).filter((uid) => typeof uid === "string" && uid !== "");
  const links = uids.map((uid) => (linkTo(uid) ? el("a", { href: linkTo(uid), class: "mono" }, uid) : el("code", {}, uid)));
  return el("span", {}, links.length ? links.flatMap((link, at) => (at ? [", ", link] : [link])) : "–");
}
