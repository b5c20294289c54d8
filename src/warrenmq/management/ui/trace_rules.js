// Trace rules: list, add, edit, delete; and the firehose.

import { get, put, remove, url } from "./api.js";
import { el, show } from "./dom.js";
import { start } from "./frame.js";
import { during, empty } from "./states.js";
import { table } from "./table.js";

start("Trace rules", (main) => {
  const list = el("div");
  const look = () => during(list, async () => draw(...(await Promise.all([get("/api/trace-rules"), get("/api/firehose")])), look));
  const add = el("button", { type: "button", class: "main push", onclick: () => edit(null, look) }, "Add rule");
  show(main, el("div", { class: "row title" }, el("h1", {}, "Trace rules"), add), list);
  if (new URLSearchParams(location.search).has("new")) edit(null, look);
  return look();
});

function draw({ rules, tracing }, { vhosts }, look) {
  return [
    tracing.failure && el("div", { class: "notice failed", role: "alert" }, "The event log failed, events are dropped: ", tracing.failure),
    el("div", { class: "figures" }, figure(tracing.enabled ? "on" : "off", "tracing"), figure(count(tracing.kept), "events recorded since the start"), figure(count(tracing.dropped), "events dropped")),
    el("section", { class: "card" }, rules.length ? [el("h2", {}, "Rules"), table(columns(look), rules)] : noRules()),
    el("p", { class: "muted" }, "A message is traced if a rule matches it, with the probability of that rule's share. This is decided once, at its publish, so a traced message has all its events. Changes apply to later publishes."),
    el("section", { class: "card" }, el("h2", {}, "Firehose"), el("p", { class: "muted" }, "While the firehose of a virtual host is on, its exchange amq.rabbitmq.trace receives a copy of every message published (routing key publish.{exchange}) or delivered (deliver.{queue}), as in RabbitMQ."), table(firehoseColumns(look), vhosts)),
  ];
}

const noRules = () =>
  empty("No rules", el("p", {}, "No events are recorded. Add a rule, or start the broker with --trace:"), el("div", { class: "hint" }, el("pre", {}, "warren serve --trace all\nwarren serve --trace 0.01")));

const figure = (value, meaning) => el("div", { class: "figure" }, el("b", {}, value), el("span", {}, meaning));
const count = (number) => (number ?? 0).toLocaleString("en");
const percent = (ratio) => `${Number((ratio * 100).toPrecision(6))} %`;
const any = (pattern) => pattern ?? el("span", { class: "muted" }, "any");
const headers = (header) => Object.entries(header).map(([name, value]) => `${name} = ${writeValue(value)}`).join(", ");

function columns(look) {
  return [
    { title: "Rule", kind: "name", value: ({ name }) => el("b", {}, name) },
    { title: "Virtual host", kind: "name", value: ({ vhost }) => any(vhost) },
    { title: "Exchange", kind: "name", value: ({ exchange }) => any(exchange) },
    { title: "Queue", kind: "name", value: ({ queue }) => any(queue) },
    { title: "Headers", kind: "name", value: ({ header }) => any(headers(header) || null) },
    { title: "Share", kind: "number", value: ({ ratio }) => percent(ratio) },
    { title: "State", value: ({ enabled }) => state(enabled, "on", "off") },
    { title: "", value: (rule) => (rule.fixed ? el("span", { class: "muted" }, "set in the configuration") : buttons(rule, look)) },
  ];
}

function buttons(rule, look) {
  const button = (text, action, kind = "") => el("button", { type: "button", class: `small ${kind}`, onclick: action }, text);
  const toggle = () => change(rule.name, { ...definition(rule), enabled: !rule.enabled }, look);
  return el("div", { class: "row actions" }, button(rule.enabled ? "Switch off" : "Switch on", toggle), button("Edit", () => edit(rule, look)), button("Delete", () => confirmDelete(rule, look), "bad"));
}

const state = (isOn, on, off) => el("span", { class: `kind ${isOn ? "ok" : "quiet"}` }, isOn ? on : off);

function firehoseColumns(look) {
  const toggle = async ({ name, open: isOpen }) => {
    try {
      await (isOpen ? remove(url`/api/firehose/${name}`) : put(url`/api/firehose/${name}`));
    } catch (error) {
      report("Could not change the firehose", error.message);
    }
    look();
  };
  const button = (vhost) => el("button", { type: "button", class: "small", onclick: () => toggle(vhost) }, vhost.open ? "Stop" : "Start");
  return [
    { title: "Virtual host", kind: "name", value: ({ name }) => el("b", {}, name) },
    { title: "State", value: (vhost) => state(vhost.open, "on", "off") },
    { title: "", value: (vhost) => el("div", { class: "row actions" }, button(vhost)) },
  ];
}

const definition = ({ vhost, exchange, queue, header, ratio, enabled }) => ({ vhost, exchange, queue, header, ratio, enabled });

async function change(name, rule, look) {
  try {
    await put(url`/api/trace-rules/${name}`, rule);
  } catch (error) {
    report("Could not change the rule", error.message);
  }
  look();
}

// -- dialogs

function edit(rule, look) {
  const name = input({ value: rule?.name, required: true, disabled: Boolean(rule), maxlength: 255 });
  const vhost = input({ value: rule?.vhost, placeholder: "any" });
  const exchange = input({ value: rule?.exchange, placeholder: "any" });
  const queue = input({ value: rule?.queue, placeholder: "any" });
  const header = input({ value: Object.entries(rule?.header ?? {}).map(([key, value]) => `${key}=${writeValue(value)}`).join("; "), placeholder: "any, or tenant=acme; level=3" });
  const share = input({ type: "number", value: rule ? rule.ratio * 100 : 100, min: 0, max: 100, step: "any", required: true });
  const enabled = el("input", { type: "checkbox", checked: rule?.enabled ?? true });
  const notice = el("div", { class: "notice failed", role: "alert", hidden: true });
  const fields = [field("Name", name), field("Share of messages, %", share), field("Virtual host", vhost), field("Exchange", exchange), field("Queue", queue), field("Headers", header), el("small", { class: "muted wide" }, "A name, or a regular expression that matches part of a name, such as ^orders\\.. The default exchange is amq.default.")];
  const form = el("form", { onsubmit: save }, el("h2", {}, rule ? "Edit rule" : "Add rule"), notice, el("div", { class: "fields" }, fields, el("label", { class: "tick wide" }, enabled, "Enabled")), buttonRow("Save"));
  const dialog = open(form);

  async function save(event) {
    event.preventDefault();
    try {
      const changed = { vhost: vhost.value || null, exchange: exchange.value || null, queue: queue.value || null, header: readHeaders(header.value), ratio: Number(share.value) / 100, enabled: enabled.checked };
      await put(url`/api/trace-rules/${name.value}`, changed);
      dialog.close();
      look();
    } catch (error) {
      notice.textContent = error.message;
      notice.hidden = false;
    }
  }
}

function readHeaders(text) {
  const pairs = text.split(";").map((pair) => pair.trim()).filter(Boolean);
  return Object.fromEntries(pairs.map((pair) => {
    const separator = pair.indexOf("=");
    if (separator < 1) throw new Error(`“${pair}” is not a header; write name=value.`);
    return [pair.slice(0, separator).trim(), readValue(pair.slice(separator + 1).trim())];
  }));
}

// Numbers, true and false are values of their type; a text that looks like one is quoted.
function readValue(text) {
  return /^(-?\d+(\.\d+)?|true|false|"([^"\\]|\\.)*")$/.test(text) ? JSON.parse(text) : text;
}

function writeValue(value) {
  return typeof value === "string" && readValue(value) !== value ? JSON.stringify(value) : String(value);
}

function confirmDelete(rule, look) {
  const form = el("form", { method: "dialog", onsubmit: act }, el("h2", {}, "Delete this rule?"), el("p", { class: "any" }, `Messages that only “${rule.name}” matches will no longer be traced. Recorded events stay.`), buttonRow("Delete"));
  const dialog = open(form);

  async function act(event) {
    event.preventDefault();
    dialog.close();
    try {
      await remove(url`/api/trace-rules/${rule.name}`);
    } catch (error) {
      if (error.status !== 404) report("Could not delete the rule", error.message); // else it is already deleted
    }
    look();
  }
}

const report = (title, text) => open(el("form", { method: "dialog" }, el("h2", {}, title), el("p", {}, text), el("div", { class: "row end" }, el("button", { class: "main" }, "Close"))));

function open(content) {
  const dialog = el("dialog", { onclose: () => dialog.remove() }, content);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

const buttonRow = (action) =>
  el("div", { class: "row end" }, el("button", { type: "button", onclick: (event) => event.target.closest("dialog").close() }, "Cancel"), el("button", { class: "main" }, action));
const input = (attributes) => el("input", { spellcheck: "false", autocomplete: "off", ...attributes });
const field = (title, control) => el("label", { class: "field" }, el("span", {}, title), control);
