// The timeline of a biography, drawn with plotly; without it, by timeline_svg.js.

import { el, show } from "./dom.js";
import { axis, plain, plot, shortened } from "./plot.js";
import { drawTimeline, PALE } from "./timeline_svg.js";

const LANE_HEIGHT = 44;
const SYMBOLS = { ok: "circle", info: "circle", note: "star", warn: "diamond", bad: "x", quiet: "square" };
const SPANS = ["waiting", "processing", "delayed"];

/** Draw the lanes (lanes.js) into the place, and again when light turns to dark. */
export async function timeline(place, model) {
  const isDrawn = await plot(place, (colour) => ({ traces: [...drawnSpans(model.lanes).map((kind) => bars(kind, model.lanes, colour)), marks(model.lanes, colour)], layout: layout(model, colour) }));
  if (!isDrawn) show(place, drawTimeline(model), el("p", { class: "muted" }, "To zoom, install plotly on the broker: ", el("code", {}, "pip install 'warrenmq[ui]'")));
}

function layout({ lanes, unit, length }, colour) {
  const margin = length ? length * 0.02 : 1;
  return {
    height: 96 + LANE_HEIGHT * lanes.length,
    margin: { l: 8, r: 16, t: 32, b: 44 },
    barmode: "overlay",
    bargap: 0.55,
    xaxis: { ...axis(colour), title: { text: `${unit} since the first event` }, range: [-margin, length + margin], showspikes: true, spikethickness: 1, spikecolor: colour("--muted"), spikemode: "across", spikedash: "dot" },
    yaxis: {
      ...axis(colour),
      showgrid: false,
      fixedrange: true,
      automargin: true,
      range: [lanes.length - 0.5, -0.5],
      tickvals: lanes.map((_, place) => place),
      ticktext: lanes.map(({ name }) => plain(shortened(name))),
      tickfont: { color: colour("--text") },
    },
  };
}

// A delay is rare: it has a place in the legend only if there is one.
const drawnSpans = (lanes) => SPANS.filter((kind) => kind !== "delayed" || lanes.some(({ spans }) => spans.some((span) => span.kind === kind)));

function bars(kind, lanes, colour) {
  const spans = lanes.flatMap((lane, place) => lane.spans.filter((span) => span.kind === kind).map((span) => ({ ...span, place })));
  return {
    type: "bar",
    orientation: "h",
    name: kind,
    y: spans.map(({ place }) => place),
    base: spans.map(({ from }) => from),
    x: spans.map(({ from, until }) => until - from),
    marker: { color: colour(`--${kind}`), opacity: spans.map(({ isLost }) => (isLost ? PALE : 1)), line: { width: 0 } },
    text: spans.map(tip),
    textposition: "none",
    hovertemplate: "%{text}<extra></extra>",
  };
}

function marks(lanes, colour) {
  const events = lanes.flatMap((lane, place) => lane.events.map((event) => ({ ...event, place })));
  return {
    type: "scatter",
    mode: "markers",
    showlegend: false,
    x: events.map(({ at }) => at),
    y: events.map(({ place }) => place),
    marker: {
      size: 11,
      color: events.map((event) => colour(`--${event.group}`)),
      symbol: events.map((event) => SYMBOLS[event.group]),
      line: { width: 1.5, color: colour("--surface") },
    },
    text: events.map(tip),
    hovertemplate: "%{text}<extra></extra>",
  };
}

const tip = ({ lines }) => lines.map((line) => plain(shortened(line, 80))).join("<br>");
