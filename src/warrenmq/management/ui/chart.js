// Draws with plotly.js, which the broker serves from the installed `plotly` package; without it, with timeline_svg.js.
// Plotly reads a few tags in texts (<b>, <a href>), so every text that is not ours is escaped by `plain`.

import { el, show } from "./dom.js";
import { drawTimeline, PALE } from "./timeline_svg.js";

const LANE_HEIGHT = 44;
const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
const SYMBOLS = { ok: "circle", info: "circle", warn: "diamond", bad: "x", quiet: "square" };

let plotly; // the promise of the library, asked for once

/** Draw the lanes (lanes.js) into the place, and again when light turns to dark. */
export async function timeline(place, model) {
  const library = await (plotly ??= load());
  const draw = () => (library ? drawWithPlotly(library, place, model) : drawAlone(place, model));
  await draw();
  document.addEventListener("themechange", function redraw() {
    if (place.isConnected) draw();
    else document.removeEventListener("themechange", redraw);
  });
}

function load() {
  return new Promise((done) => {
    const script = el("script", { src: "/ui/vendor/plotly.js", onload: () => done(window.Plotly), onerror: () => done(null) });
    document.head.append(script);
  });
}

function drawAlone(place, model) {
  const drawn = drawTimeline(model);
  show(place, drawn, el("p", { class: "muted" }, "To zoom into this chart, install plotly beside the broker: ", el("code", {}, "pip install 'warrenmq[ui]'")));
}

function drawWithPlotly(library, place, model) {
  const colour = colours();
  const { lanes, unit, length } = model;
  const margin = length ? length * 0.02 : 1;
  const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zeroline: false, color: colour("--muted") };
  const layout = {
    height: 96 + LANE_HEIGHT * lanes.length,
    margin: { l: 8, r: 16, t: 32, b: 44 },
    barmode: "overlay",
    bargap: 0.55,
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--text") },
    hoverlabel: { align: "left", bgcolor: colour("--surface"), bordercolor: colour("--line"), font: { color: colour("--text") } },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", xanchor: "left" },
    xaxis: { ...axis, title: { text: `${unit} since the first event` }, range: [-margin, length + margin], showspikes: true, spikethickness: 1, spikecolor: colour("--muted"), spikemode: "across", spikedash: "dot" },
    yaxis: {
      ...axis,
      showgrid: false,
      fixedrange: true,
      automargin: true,
      range: [lanes.length - 0.5, -0.5],
      tickvals: lanes.map((_, place) => place),
      ticktext: lanes.map(({ name }) => plain(shortened(name))),
      tickfont: { color: colour("--text") },
    },
  };
  return library.react(place, [bars("waiting", lanes, colour), bars("processing", lanes, colour), marks(lanes, colour)], layout, CONFIG);
}

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

/** Text that plotly shows as it is. */
export function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll(/\s+/g, " ");
}

const shortened = (text, most = 32) => (text.length <= most ? text : text.slice(0, most - 1) + "…");

function colours() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(name).trim();
}
