// Where messages go: exchange → queue → consumer, drawn without any library. A band is as thick as what flows in it.

import { svg } from "./dom.js";
import { amount } from "./analysis_values.js";
import { shortened } from "./plot.js";

const LAYERS = ["publisher", "exchange", "queue", "consumer"];
const BAR = 14;
const LABEL = 210; // room beside the last layer for its names
const TOP = 28;
const MAX_HEIGHT = 180; // of all that leaves one layer
const GAP = 18;
const MIN_HEIGHT = 2;
const MAX_NODES = 16; // nodes of one layer; what is smaller is drawn as one

/** The edges as an <svg> of this width: rows {source_kind, source, target_kind, target, count}, over so many seconds. */
export function flowGraph(rows, seconds, width) {
  const withVhost = rows.some(({ vhost }) => vhost !== rows[0].vhost);
  const edges = merge(rows, withVhost);
  const nodes = nodesOf(edges);
  const layers = LAYERS.map((kind) => [...nodes.values()].filter((node) => node.kind === kind)).filter((layer) => layer.length);
  const scale = MAX_HEIGHT / Math.max(1, ...layers.map((layer) => layer.reduce((sum, { value }) => sum + value, 0)));
  const height = place(layers, edges, nodes, scale, width);
  const rate = (count) => (seconds ? amount("per_second", count / seconds) : amount("count", count));
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Flow of messages: ${edges.length} ways between ${nodes.size} places`, class: "flow" },
    layers.map(([{ kind, x }]) => svg("text", { x, y: 14, class: "layer" }, `${kind}s`)),
    edges.map((edge) => band(edge, nodes, scale, rate)),
    [...nodes.values()].map((node) => drawNode(node, rate)),
  );
}

// The same way in several windows is one; the smallest nodes of a layer are one.
function merge(rows, withVhost) {
  const label = (name, vhost) => (withVhost && vhost ? `${vhost}: ${name}` : name) || "(none)";
  const all = rows.map((row) => ({ count: row.count ?? 0, from: { kind: row.source_kind, name: label(row.source, row.vhost) }, to: { kind: row.target_kind, name: label(row.target, row.vhost) } })).filter(({ from, to }) => LAYERS.includes(from.kind) && LAYERS.includes(to.kind));
  const kept = largest(all);
  const found = new Map();
  for (const { from, to, count } of all) {
    const [source, target] = [kept(from), kept(to)];
    const key = JSON.stringify([source, target]);
    if (!found.has(key)) found.set(key, { source, target, count: 0 });
    found.get(key).count += count;
  }
  return [...found.values()].sort((one, other) => other.count - one.count);
}

function largest(edges) {
  const sums = new Map(LAYERS.map((kind) => [kind, new Map()]));
  for (const { from, to, count } of edges) {
    for (const { kind, name } of [from, to]) sums.get(kind).set(name, (sums.get(kind).get(name) ?? 0) + count);
  }
  const chosen = new Map([...sums].map(([kind, names]) => [kind, new Set([...names].sort((one, other) => other[1] - one[1]).slice(0, names.size > MAX_NODES ? MAX_NODES - 1 : MAX_NODES).map(([name]) => name))]));
  return ({ kind, name }) => ({ kind, name: chosen.get(kind).has(name) ? name : `${sums.get(kind).size - chosen.get(kind).size} others` });
}

const idOf = ({ kind, name }) => `${kind}\u0000${name}`;

function nodesOf(edges) {
  const nodes = new Map();
  const node = (end) => {
    if (!nodes.has(idOf(end))) nodes.set(idOf(end), { ...end, into: 0, out: 0 });
    return nodes.get(idOf(end));
  };
  for (const { source, target, count } of edges) {
    node(source).out += count;
    node(target).into += count;
  }
  for (const each of nodes.values()) each.value = Math.max(each.into, each.out);
  return nodes;
}

/** Give every node and band its place, with few crossings; gives the height of it all. */
function place(layers, edges, nodes, scale, width) {
  const step = layers.length > 1 ? (width - LABEL - BAR) / (layers.length - 1) : 0;
  let bottom = TOP;
  layers.forEach((layer, at) => {
    const pull = new Map(layer.map((node) => [node, at ? pullOf(node, edges, nodes) : -node.value]));
    layer.sort((one, other) => pull.get(one) - pull.get(other));
    let y = TOP;
    for (const node of layer) {
      node.x = at * step;
      node.y = y;
      node.height = Math.max(MIN_HEIGHT, node.value * scale);
      y += Math.max(node.height, 16) + GAP;
    }
    bottom = Math.max(bottom, y);
  });
  for (const node of nodes.values()) stackBands(node, edges, nodes, scale);
  return bottom;
}

// The middle of where a node's messages come from, of the layers that have their place already.
function pullOf(node, edges, nodes) {
  const into = edges.filter(({ source, target }) => idOf(target) === idOf(node) && nodes.get(idOf(source)).y !== undefined);
  const weight = into.reduce((sum, { count }) => sum + count, 0);
  return weight ? into.reduce((sum, { source, count }) => sum + count * (nodes.get(idOf(source)).y + nodes.get(idOf(source)).height / 2), 0) / weight : Infinity;
}

// Bands leave and reach a node in the order of their other ends.
function stackBands(node, edges, nodes, scale) {
  for (const [here, there, place] of [["source", "target", "begin"], ["target", "source", "end"]]) {
    const own = edges.filter((edge) => idOf(edge[here]) === idOf(node)).sort((one, other) => nodes.get(idOf(one[there])).y - nodes.get(idOf(other[there])).y);
    let y = node.y;
    for (const edge of own) {
      edge[place] = y + (edge.count * scale) / 2;
      y += edge.count * scale;
    }
  }
}

function band({ source, target, count, begin, end }, nodes, scale, rate) {
  const from = nodes.get(idOf(source)).x + BAR;
  const to = nodes.get(idOf(target)).x;
  const isBack = to <= from; // dead letters go back to an exchange
  const middle = isBack ? 60 : (to - from) / 2;
  const path = `M ${from} ${begin} C ${from + middle} ${begin}, ${to - middle} ${end}, ${to} ${end}`;
  return svg("path", { d: path, fill: "none", stroke: `var(--${isBack ? "bad" : "series-1"})`, "stroke-width": Math.max(1, count * scale), class: "band" }, svg("title", {}, `${source.name} → ${target.name}\n${amount("count", count)} messages, ${rate(count)}`));
}

function drawNode(node, rate) {
  const { x, y, height, name, value, kind } = node;
  return svg(
    "g",
    {},
    svg("rect", { x, y, width: BAR, height, rx: 2, fill: `var(--flow-${kind})` }, svg("title", {}, `${kind} ${name}\n${amount("count", value)} messages, ${rate(value)}`)),
    svg("text", { x: x + BAR + 6, y: y + Math.min(height / 2, 40) + 4, class: "lane" }, shortened(name, 22), svg("tspan", { class: "rate" }, `  ${rate(value)}`)),
  );
}
