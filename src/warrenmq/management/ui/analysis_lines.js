// Measures over time, a line for each name.

import { amount, unit } from "./analysis_values.js";
import { axis, plain, plot, shortened } from "./plot.js";

export const PALETTE = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6", "--series-7", "--series-8"];

/** Draw `series` of seriesOf; `column` says which unit the values have. False without plotly. */
export function drawLines(place, series, column, { log = false, colours } = {}) {
  return plot(place, (colour) => ({
    traces: series.map((each, at) => line(each, unit(column), colour((colours ?? PALETTE)[at % (colours ?? PALETTE).length]))),
    layout: {
      height: 300,
      margin: { l: 8, r: 12, t: 12, b: 32 },
      hovermode: "x unified",
      showlegend: series.length > 1,
      legend: { orientation: "h", x: 0, y: -0.14, yanchor: "top", xanchor: "left" },
      xaxis: { ...axis(colour), type: "date" },
      yaxis: { ...axis(colour), automargin: true, rangemode: log ? "normal" : "tozero", type: log ? "log" : "linear", ...ticks(series, unit(column), log) },
    },
  }));
}

function line({ name, x, y }, kind, colour) {
  return {
    type: "scatter",
    mode: x.length < 40 ? "lines+markers" : "lines",
    name: plain(shortened(name, 28)),
    x,
    y,
    line: { color: colour, width: 2 },
    marker: { size: 5 },
    text: y.map((value) => (value === null ? "" : plain(amount(kind, value)))),
    hovertemplate: "%{text}",
  };
}

const LOG_STEPS = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 6e7, 6e8, 3.6e9];

/** Times stand beside their axis as times; other numbers as plotly writes them. */
export function ticks(series, kind, log) {
  if (kind === "ratio") return { tickformat: ",.3~%" };
  if (kind === "bytes") return { tickformat: ".3~s", ticksuffix: "B" };
  if (kind !== "us" && kind !== "seconds") return { tickformat: ",~r", ticksuffix: kind === "per_second" ? "/s" : "" };
  const scale = kind === "us" ? 1 : 1e6;
  const values = series.flatMap(({ y }) => y).filter((value) => typeof value === "number");
  const most = values.reduce((one, other) => Math.max(one, other), 0) * scale;
  const steps = log ? LOG_STEPS : linearSteps(most);
  return { tickvals: steps.map((step) => step / scale), ticktext: steps.map((step) => amount("us", step)) };
}

function linearSteps(most) {
  if (!most) return [0];
  const power = 10 ** Math.floor(Math.log10(most / 4));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= most / 5);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, at) => at * step);
}
