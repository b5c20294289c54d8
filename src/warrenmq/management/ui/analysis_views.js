// How each job is shown: a view is {title?, about, isWide, choices(rows) -> [{name, options}], draw(place, rows, chosen)}.
// A job that is not known here, a user's own, is shown by what its chart, keys and columns say.

import { anomalyList } from "./analysis_anomalies.js";
import { drawBars, drawStack } from "./analysis_bars.js";
import { flowGraph } from "./analysis_flow.js";
import { drawLines } from "./analysis_lines.js";
import { newest, secondsOf, seriesOf, spanOf, totalsOf } from "./analysis_series.js";
import { rowsTable } from "./analysis_table.js";
import { amount, heading, measuresOf, moment, nameOf, varies } from "./analysis_values.js";
import { el, show } from "./dom.js";

/** Which jobs come first. */
export const ORDER = ["anomalies", "throughput", "latency", "priorities", "backlog", "failures", "retries", "flow", "consumers", "hot_keys", "dead_letters", "unroutable", "duplicates", "sessions"];

/** The view of a job; `linkTo(uid)` returns the address of a message's biography, or null. */
export function viewOf({ job, chart, keys }, linkTo) {
  const known = { throughput, latency, priorities, backlog, failures, retries, dead_letters: deadLetters, flow, hot_keys: hotKeys, consumers, unroutable, duplicates: duplicates(linkTo), sessions, anomalies: anomalies(linkTo) };
  const generic = { lines: anyLines(keys), percentiles: anyLines(keys), bars: anyBars(keys), flow, anomalies: anomalies(linkTo) };
  return (Object.hasOwn(known, job) && known[job]) || (Object.hasOwn(generic, chart) && generic[chart]) || anyTable;
}

// Name the virtual host only if there are several.
const named = (rows, ...columns) => {
  const shown = rows.length && varies(rows, "vhost") ? ["vhost", ...columns] : columns;
  return (row) => nameOf(row, shown);
};

const option = (value, text = heading(value)) => ({ value, text });
const others = (left) => left > 0 && `The smallest ${left === 1 ? "one is" : `${left} are`} not drawn.`;
const note = (place, ...texts) => show(place.note, texts.filter(Boolean).map((text) => el("p", {}, text)));

// -- the jobs of `warren analyze`

const throughput = {
  about: "Messages per second by exchange, queue or routing key.",
  choices: () => [
    { name: "what", label: "By", options: [option("queue"), option("exchange"), option("key", "routing key")] },
    { name: "measure", label: "Measure", options: ["enqueued_per_second", "published_per_second", "delivered_per_second", "acked_per_second", "bytes"].map((each) => option(each)) },
  ],
  // Queues have no publish rate, exchanges no enqueue rate.
  follow: ({ what, measure }) => (measure === "bytes" ? {} : { measure: what === "queue" ? "enqueued_per_second" : "published_per_second" }),
  draw(place, rows, { what, measure }) {
    const fitting = rows.filter((row) => row.what === what);
    const name = what === "key" ? named(fitting, "exchange", "name") : named(fitting, "name");
    const { series, left } = seriesOf(fitting, name, (row) => row[measure]);
    note(place, others(left), !fitting.length && `No data by ${what} in the time shown.`);
    return drawLines(place.chart, series, measure);
  },
};

const TIMES = ["end_to_end", "waiting", "processing"];
const PERCENTILES = ["p50", "p90", "p95", "p99", "max"];
const PERCENTILE_COLOURS = ["--series-1", "--series-4", "--series-2", "--series-3", "--quiet"];

const latency = {
  about: "Time from publish to ack, time waiting in queues, and processing time of consumers.",
  choices: (rows) => [
    { name: "time", label: "Time", options: TIMES.map((each) => option(each, each === "end_to_end" ? "end to end" : each)) },
    { name: "queue", label: "Queue", options: [option("", "all queues, p95"), ...queuesOf(rows).map((queue) => option(queue, queue))] },
  ],
  draw(place, rows, { time, queue }) {
    const name = named(rows, "queue");
    note(place);
    if (queue) {
      const fitting = rows.filter((row) => name(row) === queue);
      const series = PERCENTILES.map((each) => ({ ...(seriesOf(fitting, () => each, (row) => row[`${time}_${each}_us`]).series[0] ?? { x: [], y: [] }), name: each }));
      return drawLines(place.chart, series, "us", { log: true, colours: PERCENTILE_COLOURS });
    }
    const { series, left } = seriesOf(rows, name, (row) => row[`${time}_p95_us`]);
    note(place, others(left));
    return drawLines(place.chart, series, "us", { log: true });
  },
};

const queuesOf = (rows) => totalsOf(rows, named(rows, "queue"), () => 1).map(({ name }) => name).sort().slice(0, 200);

const WAITS = ["p99", "p50", "mean", "max"];

const priorities = {
  about: "Waiting time by priority, in queues with priorities. 0: messages without a priority.",
  choices: (rows) => [
    // The busiest first: the first one is drawn by default.
    { name: "queue", label: "Queue", options: totalsOf(rows, named(rows, "queue"), ({ delivered }) => delivered).map(({ name }) => option(name, name)).slice(0, 200) },
    { name: "measure", label: "Measure", options: [...WAITS.map((each) => option(`waiting_${each}_us`, `waiting, ${each}`)), option("delivered")] },
  ],
  draw(place, rows, { queue, measure }) {
    const name = named(rows, "queue");
    const fitting = rows.filter((row) => name(row) === queue);
    const { series, left } = seriesOf(fitting, (row) => `priority ${row.priority}`, (row) => row[measure]);
    // The highest first, as the queue delivers them.
    series.sort((one, other) => other.name.localeCompare(one.name, "en", { numeric: true }));
    note(place, others(left), !rows.length && "No message with a priority was delivered in the time shown.");
    return drawLines(place.chart, series, measure, { log: measure !== "delivered" });
  },
};

const backlog = {
  about: "Messages waiting in each queue, their growth, and a forecast.",
  choices: () => [{ name: "measure", label: "Measure", options: [option("depth", "waiting"), option("depth_max", "maximum waiting"), option("slope_per_second", "growth")] }],
  draw(place, rows, { measure }) {
    const name = named(rows, "queue");
    const { series, left } = seriesOf(rows, name, (row) => row[measure]);
    note(place, others(left), ...newest(rows).map((row) => forecast(name(row), row)).filter(Boolean).slice(0, 6));
    return drawLines(place.chart, series, measure);
  },
};

function forecast(name, { depth, slope_per_second: slope, full_in_seconds: full, empty_in_seconds: empty }) {
  if (typeof full === "number") return `${name} grows by ${amount("per_second", slope)} and reaches its limit in ${amount("seconds", full)}.`;
  if (typeof slope === "number" && slope > 0 && depth > 0) return `${name} grows by ${amount("per_second", slope)}.`;
  return typeof empty === "number" && depth > 0 ? `${name} will be empty in ${amount("seconds", empty)}.` : null;
}

const failures = {
  about: "Redeliveries, retries, rejections, expiries, drops and dead letters, with their reasons.",
  choices: (rows) => [
    { name: "by", label: "By", options: [option("kind", "event"), option("queue"), option("reason"), option("top", "totals with reasons")] },
    { name: "queue", label: "Queue", options: [option("", "all queues"), ...queuesOf(rows).map((queue) => option(queue, queue))] },
  ],
  draw(place, rows, { by, queue }) {
    const name = named(rows, "queue");
    const fitting = queue ? rows.filter((row) => name(row) === queue) : rows;
    note(place, !fitting.length && "Nothing failed in the time shown.");
    if (by === "top") return drawBars(place.chart, totalsOf(fitting, named(fitting, "queue", "kind", "reason"), ({ count }) => count), "count", () => true);
    const { series, left } = seriesOf(fitting, (row) => nameOf(row, [by]).replaceAll("_", "-"), ({ count }) => count, { fill: 0 });
    note(place, others(left), !fitting.length && "Nothing failed in the time shown.");
    return drawStack(place.chart, series, "count", spanOf(fitting));
  },
};

const retries = {
  about: "Deliveries that came back to their queues. A storm: far more than usual, or mostly redeliveries.",
  choices: () => [
    { name: "what", label: "By", options: [option("queue"), option("key", "routing key")] },
    { name: "measure", label: "Measure", options: [option("per_second", "retries"), option("redelivered_ratio", "share of redeliveries"), option("exhausted", "out of attempts")] },
  ],
  follow: ({ what }) => (what === "key" ? { measure: "per_second" } : {}),
  draw(place, rows, { what, measure }) {
    const fitting = rows.filter((row) => row.what === what);
    const name = named(fitting, ...(what === "key" ? ["queue", "name"] : ["queue"]));
    const { series, left } = seriesOf(fitting, name, (row) => row[measure]);
    const storms = totalsOf(fitting.filter((row) => row.storm), name, ({ returned }) => returned).map(storm);
    note(place, ...storms.slice(0, 4), others(left), !fitting.length && "Nothing came back in the time shown.");
    return drawLines(place.chart, series, measure);
  },
};

function storm({ name, rows }) {
  const worst = rows.reduce((one, other) => (other.returned > one.returned ? other : one));
  const usual = typeof worst.usual_per_second === "number" ? `, usually ${amount("per_second", worst.usual_per_second)}` : "";
  return `Retry storm in ${name}: ${amount("per_second", worst.per_second)} at ${moment(worst.window_start)}${usual}; most often ${worst.reason}.`;
}

const deadLetters = {
  about: "Why messages were dead-lettered, with the exchange and routing key they were published with. The table has examples.",
  choices: () => [{ name: "by", label: "By", options: [option("cause"), option("reason"), option("queue"), option("routing_key")] }],
  draw(place, rows, { by }) {
    const columns = by === "cause" ? ["queue", "reason", "exchange", "routing_key"] : [by];
    note(place, !rows.length && "No dead letters in the time shown.");
    return drawBars(place.chart, totalsOf(rows, named(rows, ...columns), ({ count }) => count), "count", () => true);
  },
};

const flow = {
  about: "Flow of messages in the time shown: from exchanges to queues to consumers. Red: dead letters, from a queue back to an exchange.",
  isWide: true,
  choices: () => [],
  draw(place, rows) {
    note(place, !rows.length && "No messages in the time shown.");
    if (rows.length) show(place.chart, flowGraph(rows, secondsOf(rows), Math.max(560, place.chart.clientWidth || 0)));
    else show(place.chart);
    return true;
  },
};

const hotKeys = {
  about: "Routing keys with the most messages. Red: a poison key, whose messages fail again and again.",
  choices: () => [{ name: "measure", label: "Measure", options: [option("published"), option("bytes"), option("failed")] }],
  draw(place, rows, { measure }) {
    const totals = totalsOf(rows, named(rows, "exchange", "routing_key"), (row) => row[measure]).filter(({ value }) => value > 0);
    const poison = totalsOf(rows.filter((row) => row.poison), named(rows, "exchange", "routing_key"), ({ failed }) => failed).map(({ name, value }) => `Poison key ${name}: ${amount("count", value)} failures.`);
    note(place, ...poison.slice(0, 4), !totals.length && "None in the time shown.");
    return drawBars(place.chart, totals, measure, (total) => total.rows.some((row) => row.poison));
  },
};

const consumers = {
  about: "Deliveries and acks of each consumer in the newest window. Skew 1 is an even share.",
  isWide: true,
  choices: () => [],
  draw(place, rows) {
    const last = newest(rows);
    const stuck = last.filter((row) => row.stuck);
    note(place, last.length > 0 && `Window of ${moment(last[0].window_start)}: ${last.length} consumers, ${stuck.length} of them stuck.`, !last.length && "No consumers in the time shown.");
    const state = (isStuck, row) => el("span", { class: `kind ${isStuck ? "bad" : "ok"}` }, isStuck ? `stuck${row.stuck_since ? ` since ${moment(row.stuck_since)}` : ""}` : "working");
    const columns = ["queue", "consumer", "connection", "delivered", "settled", "outstanding", "share_ratio", "skew", "stuck"];
    const sort = (one, other) => Number(other.stuck ?? false) - Number(one.stuck ?? false) || (other.delivered ?? 0) - (one.delivered ?? 0);
    show(place.chart, last.length ? rowsTable(last, { columns, cells: { stuck: state }, sort }) : []);
    return true;
  },
};

const unroutable = {
  about: "Messages that no binding took, by exchange and routing key.",
  choices: () => [],
  draw(place, rows) {
    const totals = totalsOf(rows, named(rows, "exchange", "routing_key"), ({ count }) => count);
    note(place, !totals.length && "No unroutable messages in the time shown.");
    return drawBars(place.chart, totals, "count", () => true);
  },
};

const duplicates = (linkTo) => ({
  about: "Messages published more than once with the same id, and duplicates that the broker dropped.",
  choices: () => [],
  draw: (place, rows) => tableOrNote(place, rows, "No duplicates in the time shown.", { columns: ["window_start", "what", "name", "times", "apart_us", "first_uid"], linkTo }),
});

const sessions = {
  about: "Messages with the same correlation id, the longest sessions first.",
  choices: () => [],
  draw: (place, rows) => tableOrNote(place, rows, "No correlation ids in the time shown.", { columns: ["correlation_id", "started", "duration_us", "messages", "settled", "failed"], cells: { correlation_id: session }, sort: (one, other) => (other.duration_us ?? 0) - (one.duration_us ?? 0) }),
};

const session = (id) => el("span", { class: "any" }, id ?? "–");

const anomalies = (linkTo) => ({
  about: "Windows that differ from those before them.",
  isWide: true,
  choices: () => [],
  draw(place, rows) {
    note(place);
    const isOpen = place.chart.querySelector(".more-anomalies")?.open ?? false;
    show(place.chart, anomalyList(rows, linkTo, isOpen));
    return true;
  },
});

// -- jobs of users

const plainKeys = (keys) => keys.filter((key) => key !== "window_start" && key !== "window_end");
const measureChoice = (rows, keys) => [{ name: "measure", label: "Measure", options: measuresOf(rows, keys).map((each) => option(each)) }];

const anyLines = (keys) => ({
  choices: (rows) => measureChoice(rows, keys),
  draw(place, rows, { measure }) {
    if (!measure || !rows.some((row) => row.window_start)) return anyTable.draw(place, rows);
    const { series, left } = seriesOf(rows, (row) => nameOf(row, plainKeys(keys)), (row) => row[measure]);
    note(place, others(left));
    return drawLines(place.chart, series, measure);
  },
});

const anyBars = (keys) => ({
  choices: (rows) => measureChoice(rows, keys),
  draw(place, rows, { measure }) {
    if (!measure) return anyTable.draw(place, rows);
    note(place);
    return drawBars(place.chart, totalsOf(rows, (row) => nameOf(row, plainKeys(keys)), (row) => row[measure]), measure);
  },
});

const anyTable = {
  choices: () => [],
  draw: (place, rows) => tableOrNote(place, rows, "No rows in the time shown."),
};

function tableOrNote(place, rows, nothing, options) {
  note(place, !rows.length && nothing);
  show(place.chart, rows.length ? rowsTable(rows, options) : []);
  return true;
}
