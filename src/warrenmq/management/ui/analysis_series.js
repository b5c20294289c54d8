// Rows of windows as series over time, and as totals: what the charts of the analysis draw.

import { clock } from "./format.js";

/** Times as the charts have them: local, as everywhere on these pages. */
export const when = (iso) => clock(iso).replace(/\.000000$/, "");

/**
 * One series for each name: {name, key, x, y, total}, the one with the largest total first, and how many were left out.
 * A window in which a name has no row is a gap, or zero if `fill` says so.
 */
export function seriesOf(rows, nameOf, valueOf, { most = 8, fill = null } = {}) {
  const starts = [...new Set(rows.map((row) => row.window_start))].sort();
  const place = new Map(starts.map((start, at) => [start, at]));
  const found = new Map();
  for (const row of rows) {
    const name = nameOf(row);
    if (!found.has(name)) found.set(name, { name, y: new Array(starts.length).fill(fill), total: 0 });
    const series = found.get(name);
    const value = valueOf(row);
    const at = place.get(row.window_start);
    if (typeof value !== "number") continue;
    series.y[at] = (series.y[at] ?? 0) + value;
    series.total += Math.abs(value);
  }
  const x = starts.map(when);
  const sorted = [...found.values()].sort((one, other) => other.total - one.total);
  return { series: sorted.slice(0, most).map((each) => ({ ...each, x })), left: Math.max(0, sorted.length - most) };
}

/** Sums by name: [{name, value, rows}], the largest first. */
export function totalsOf(rows, nameOf, valueOf) {
  const found = new Map();
  for (const row of rows) {
    const name = nameOf(row);
    if (!found.has(name)) found.set(name, { name, value: 0, rows: [] });
    const total = found.get(name);
    total.value += valueOf(row) ?? 0;
    total.rows.push(row);
  }
  return [...found.values()].sort((one, other) => other.value - one.value);
}

/** The seconds that these rows cover, from the first window to the end of the last. */
export function secondsOf(rows) {
  if (!rows.length || !rows[0].window_start) return 0;
  const starts = rows.map((row) => Date.parse(row.window_start));
  const ends = rows.map((row) => Date.parse(row.window_end ?? row.window_start));
  return (ends.reduce((most, each) => Math.max(most, each)) - starts.reduce((least, each) => Math.min(least, each))) / 1000;
}

const FEW = 24; // windows

/** How wide a bar of one window is, in milliseconds, and from when to when: a few windows must not fill a whole chart. */
export function spanOf(rows) {
  const starts = rows.map(({ window_start }) => Date.parse(window_start));
  if (!starts.length) return null;
  const width = (Date.parse(rows[0].window_end) || starts[0] + 10_000) - starts[0];
  const first = starts.reduce((least, each) => Math.min(least, each));
  const last = starts.reduce((most, each) => Math.max(most, each)) + width;
  const margin = Math.max(0, FEW * width - (last - first)) / 2 + width;
  return { width, range: [first - margin, last + margin].map((ms) => when(new Date(ms).toISOString())) };
}

/** The rows of the newest window. */
export function newest(rows) {
  const last = rows.reduce((most, { window_start }) => (window_start > most ? window_start : most), "");
  return rows.filter(({ window_start }) => (window_start ?? "") === last);
}
