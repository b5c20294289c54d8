// The columns of an answer as people read them. What a value is, its column's name says: _us, _seconds, _per_second, _ratio, bytes.

import { clock, duration, size } from "./format.js";

const ISO_TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;

/** "us", "seconds", "per_second", "ratio", "bytes" or "count". */
export function unit(column) {
  return ["us", "seconds", "per_second", "ratio", "bytes"].find((name) => column === name || column.endsWith(`_${name}`)) ?? "count";
}

const number = (value, digits = 3) => (Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(digits))).toLocaleString("en");

/** A value as text. */
export function shown(column, value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map((each) => shown(column, each)).join(", ");
  if (typeof value === "string") return ISO_TIME.test(value) ? moment(value) : value;
  return amount(unit(column), value);
}

/** A number with its unit. */
export function amount(kind, value) {
  if (value < 0 && (kind === "us" || kind === "seconds")) return `-${amount(kind, -value)}`;
  if (kind === "us") return duration(value);
  if (kind === "seconds") return duration(value * 1_000_000);
  if (kind === "per_second") return `${number(value)}/s`;
  if (kind === "ratio") return `${number(value * 100)} %`;
  if (kind === "bytes") return size(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : number(value);
}

/** A time to the second, with what is below only where there is something. */
export const moment = (iso) => clock(iso).replace(/\.000000$/, "").replace(/(\.\d{3})\d+$/, "$1");

/** waiting_p95_us -> waiting p95; published_per_second -> published. */
export const heading = (column) => column.replace(/_(us|per_second|ratio|seconds)$/, "").replaceAll("_", " ");

export const isTime = (value) => typeof value === "string" && ISO_TIME.test(value);

/** The columns that hold numbers somewhere in these rows. */
export function measuresOf(rows, keys) {
  const columns = new Set(rows.slice(0, 200).flatMap((row) => Object.keys(row).filter((column) => typeof row[column] === "number")));
  return [...columns].filter((column) => !keys.includes(column));
}

/** How many vhosts, exchanges, … there are: a column that is the same in all rows need not be said. */
export const varies = (rows, column) => rows.some((row) => row[column] !== rows[0][column]);

/** What a row is about, of these columns: "orders · key.1". */
export function nameOf(row, columns) {
  return columns.map((column) => row[column]).filter((value) => value !== null && value !== undefined && value !== "").map(String).join(" · ") || "(all)";
}
