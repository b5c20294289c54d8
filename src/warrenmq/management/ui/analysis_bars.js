// Bars: totals, the largest first; or counts over time, stacked by what they are of.

import { amount, unit } from "./analysis_values.js";
import { PALETTE, ticks } from "./analysis_lines.js";
import { axis, plain, plot, shortened } from "./plot.js";

const BAR_HEIGHT = 26;

/** Totals of totalsOf, with `isBad(total)` in the colour of failures. False without plotly. */
export function drawBars(place, totals, column, isBad = () => false) {
  const most = totals.slice(0, 12).reverse();
  return plot(place, (colour) => ({
    traces: [
      {
        type: "bar",
        orientation: "h",
        y: most.map((_, at) => at),
        x: most.map(({ value }) => value),
        marker: { color: most.map((total) => colour(isBad(total) ? "--bad" : "--series-1")) },
        text: most.map(({ value }) => plain(amount(unit(column), value))),
        textposition: "auto",
        insidetextfont: { color: colour("--surface") },
        hovertext: most.map(({ name, value }) => `${plain(shortened(name, 80))}<br>${plain(amount(unit(column), value))}`),
        hovertemplate: "%{hovertext}<extra></extra>",
      },
    ],
    layout: {
      height: Math.max(120, 56 + BAR_HEIGHT * most.length),
      margin: { l: 8, r: 12, t: 4, b: 32 },
      bargap: 0.3,
      showlegend: false,
      xaxis: { ...axis(colour), ...ticks([{ y: most.map(({ value }) => value) }], unit(column), false), rangemode: "tozero" },
      yaxis: { ...axis(colour), showgrid: false, fixedrange: true, automargin: true, tickvals: most.map((_, at) => at), ticktext: most.map(({ name }) => plain(shortened(name, 36))), tickfont: { color: colour("--text") } },
    },
  }));
}

/** Series of seriesOf, each window's bars upon each other, within a span of spanOf. False without plotly. */
export function drawStack(place, series, column, span) {
  return plot(place, (colour) => ({
    traces: series.map(({ name, x, y }, at) => ({
      type: "bar",
      name: plain(shortened(name, 28)),
      x,
      y,
      width: span && span.width * 0.85,
      offset: span && span.width * 0.075,
      marker: { color: colour(PALETTE[at % PALETTE.length]), line: { width: 0 } },
      text: y.map((value) => plain(amount(unit(column), value ?? 0))),
      textposition: "none",
      hovertemplate: "%{text}",
    })),
    layout: {
      height: 300,
      margin: { l: 8, r: 12, t: 12, b: 32 },
      barmode: "stack",
      hovermode: "x unified",
      showlegend: true,
      legend: { orientation: "h", x: 0, y: -0.14, yanchor: "top", xanchor: "left" },
      xaxis: { ...axis(colour), type: "date", range: span?.range },
      yaxis: { ...axis(colour), automargin: true, rangemode: "tozero", ...ticks(series, unit(column), false) },
    },
  }));
}
