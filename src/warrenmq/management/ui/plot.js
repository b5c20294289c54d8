// plotly.js, which the broker serves from the installed `plotly` package, and what all charts have in common.
// Plotly reads a few tags in texts (<b>, <a href>), so every text that is not ours is escaped by `plain`.

import { el } from "./dom.js";

const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

let asked; // the promise of the library, asked for once

/** The library, or null where it is not installed. A report has it in itself, and has no server to ask. */
function library() {
  const isReport = "report" in document.documentElement.dataset;
  asked ??= window.Plotly || isReport ? Promise.resolve(window.Plotly ?? null) : load();
  return asked;
}

function load() {
  return new Promise((done) => {
    const script = el("script", { src: "/ui/vendor/plotly.js", onload: () => done(window.Plotly), onerror: () => done(null) });
    document.head.append(script);
  });
}

/** Draw the traces; `make(colour)` gives {traces, layout}, and is asked again when light turns to dark. False without plotly. */
export async function plot(place, make) {
  const plotly = await library();
  if (!plotly) return false;
  const draw = () => {
    const colour = colours();
    const { traces, layout } = make(colour);
    return plotly.react(place, traces, { ...common(colour), ...layout }, CONFIG);
  };
  await draw();
  if (!place.warrenRedraw) {
    document.addEventListener("themechange", function redraw() {
      if (place.isConnected) place.warrenRedraw();
      else document.removeEventListener("themechange", redraw);
    });
  }
  place.warrenRedraw = draw;
  return true;
}

function common(colour) {
  return {
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--text") },
    hoverlabel: { align: "left", bgcolor: colour("--surface"), bordercolor: colour("--line"), font: { color: colour("--text") } },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", xanchor: "left" },
  };
}

/** What every axis looks like. */
export const axis = (colour) => ({ gridcolor: colour("--line"), linecolor: colour("--line"), zeroline: false, color: colour("--muted") });

/** Text that plotly shows as it is. */
export function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll(/\s+/g, " ");
}

export const shortened = (text, most = 32) => (text.length <= most ? text : text.slice(0, most - 1) + "…");

function colours() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(name).trim();
}
