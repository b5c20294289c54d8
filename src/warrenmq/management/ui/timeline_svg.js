// The timeline as plain SVG: a row per lane, spans as bars, events as dots with tooltips.

import { svg } from "./dom.js";

const WIDTH = 1000;
const LEFT = 190;
const RIGHT = 20;
const TOP = 8;
const LANE = 40;
const BAR = 16;
const TICKS = 6;

/** Opacity of a span of unknown length. */
export const PALE = 0.35;

/** The lanes of lanes.js as an <svg>. */
export function drawTimeline({ lanes, unit, length }) {
  const bottom = TOP + LANE * lanes.length;
  const x = (at) => LEFT + (length ? at / length : 0) * (WIDTH - LEFT - RIGHT);
  const rows = lanes.flatMap((lane, place) => drawLane(lane, TOP + LANE * (place + 0.5), x));
  const picture = { viewBox: `0 0 ${WIDTH} ${bottom + 40}`, role: "img", "aria-label": "Timeline of the message" };
  return svg("svg", picture, scale(length, unit, bottom, x), rows);
}

function drawLane(lane, y, x) {
  const name = lane.name.length <= 24 ? lane.name : lane.name.slice(0, 23) + "…";
  return [
    svg("text", { x: LEFT - 14, y: y + 4, "text-anchor": "end", class: "lane" }, svg("title", {}, lane.name), name),
    svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, stroke: "var(--line)" }),
    lane.spans.map(({ kind, isLost, from, until, lines }) =>
      svg("rect", { x: x(from), y: y - BAR / 2, width: Math.max(1, x(until) - x(from)), height: BAR, rx: 3, fill: `var(--${kind})`, opacity: isLost ? PALE : 1 }, svg("title", {}, lines.join("\n"))),
    ),
    lane.events.map(({ at, group, lines }) =>
      svg("circle", { cx: x(at), cy: y, r: 5.5, fill: `var(--${group})`, stroke: "var(--surface)", "stroke-width": 1.5 }, svg("title", {}, lines.join("\n"))),
    ),
  ].flat();
}

function scale(length, unit, bottom, x) {
  const step = niceStep(length / TICKS);
  const ticks = length ? Array.from({ length: Math.floor(length / step + 1e-9) + 1 }, (_, place) => place * step) : [0];
  const lines = ticks.flatMap((at) => [
    svg("line", { x1: x(at), x2: x(at), y1: TOP, y2: bottom, stroke: "var(--line)", "stroke-dasharray": "2 4" }),
    svg("text", { x: x(at), y: bottom + 16, "text-anchor": "middle" }, String(Number(at.toPrecision(6)))),
  ]);
  return [...lines, svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: bottom + 34, "text-anchor": "middle" }, `${unit} since the first event`)];
}

// 1, 2 or 5 times a power of ten.
function niceStep(min) {
  const power = 10 ** Math.floor(Math.log10(min || 1));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= min);
}
