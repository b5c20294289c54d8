// Results of `warren analyze`, live with `--follow`. Only visible cards are requested and drawn.

import { get, query, url } from "./api.js";
import { jobCard } from "./analysis_card.js";
import { ORDER } from "./analysis_views.js";
import { notices, statusLine } from "./analysis_status.js";
import { el, show } from "./dom.js";
import { start } from "./frame.js";
import { empty, failed, loading } from "./states.js";
import { howToSwitchOn } from "./switch_on.js";

const EVERY_MS = 2000;
const MAX_ROWS = 10_000;
const RANGES = [["", "All results"], ["15m", "Last 15 minutes"], ["1h", "Last hour"], ["6h", "Last 6 hours"], ["24h", "Last 24 hours"]];

start("Analysis", (main) => new Page(main).run());

class Page {
  constructor(main) {
    this.main = main;
    this.jobs = new Map(); // name -> Job
    this.board = "";
    this.range = new URLSearchParams(location.search).get("from") ?? "";
    this.notices = el("div", { "aria-live": "polite" });
    this.line = el("div");
    this.cards = el("div", { class: "jobs" });
    this.links = el("nav", { class: "links", "aria-label": "Jobs" });
    this.place = el("div");
    this.timer = 0;
    this.turn = 0;
    this.seen = new IntersectionObserver((entries) => this.look(entries), { rootMargin: "200px" });
  }

  async run() {
    const range = el("select", { name: "range", "aria-label": "Time shown", onchange: () => this.choose(range.value) }, RANGES.map(([value, text]) => el("option", { value, selected: value === this.range }, text)));
    show(this.main, el("div", { class: "row title" }, el("h1", {}, "Analysis"), el("label", { class: "choice push" }, el("span", {}, "Time"), range)), this.notices, this.line, this.links, this.place);
    show(this.place, el("div", { class: "card" }, loading()));
    document.addEventListener("visibilitychange", () => this.poll());
    await this.poll();
  }

  choose(range) {
    this.range = range;
    history.replaceState(null, "", location.pathname + query({ from: range }));
    for (const job of this.jobs.values()) job.forget();
    this.poll();
  }

  // One poll at a time, and none while the page is hidden.
  async poll() {
    clearTimeout(this.timer);
    const turn = ++this.turn;
    if (document.visibilityState !== "visible") return;
    try {
      const found = await get("/api/analysis");
      if (turn === this.turn) this.draw(found);
      if (turn === this.turn) await Promise.all(this.inOrder().filter((job) => job.isBehind).map((job) => job.refresh(this.range)));
    } catch (error) {
      if (turn === this.turn) this.showError(error);
      if (!("status" in error)) throw error; // a bug of ours: report it in the console
    } finally {
      if (turn === this.turn) this.timer = setTimeout(() => this.poll(), EVERY_MS);
    }
  }

  draw(found) {
    if (found.board !== this.board) this.begin(found.board);
    this.warn(notices(found));
    show(this.line, statusLine(found));
    if (!found.jobs.length) return this.wait(found);
    let isNew = false;
    for (const about of found.jobs) {
      const job = this.jobs.get(about.job);
      if (job && job.about.chart === about.chart) job.about = about;
      else {
        this.jobs.set(about.job, new Job(about));
        isNew = true;
      }
    }
    if (isNew || !this.cards.isConnected) this.arrange();
  }

  wait(found) {
    showIfOther(this.place, el("div", { class: "card" }, nothing(found)));
  }

  warn(notices) {
    showIfOther(this.notices, notices);
  }

  begin(board) {
    this.board = board;
    this.jobs.clear();
    this.seen.disconnect();
    show(this.cards);
    show(this.links);
  }

  inOrder() {
    const rank = ({ about }) => (ORDER.includes(about.job) ? ORDER.indexOf(about.job) : ORDER.length);
    return [...this.jobs.values()].sort((one, other) => rank(one) - rank(other) || one.about.job.localeCompare(other.about.job));
  }

  arrange() {
    const jobs = this.inOrder();
    show(this.links, jobs.map(({ about, card }) => el("a", { href: `#${card.element.id}` }, about.title)));
    show(this.cards, jobs.map(({ card }) => card.element));
    show(this.place, this.cards);
    for (const { card } of jobs) this.seen.observe(card.element);
  }

  look(entries) {
    const jobs = [...this.jobs.values()];
    for (const { target, isIntersecting } of entries) {
      const job = jobs.find(({ card }) => card.element === target);
      if (job) job.isSeen = isIntersecting;
    }
    if (jobs.some((job) => job.isBehind)) this.poll();
  }

  showError(error) {
    if (this.jobs.size) this.warn([el("div", { class: "notice failed" }, `${error.message} The results shown may be outdated; retrying.`)]);
    else show(this.place, el("div", { class: "card" }, failed(error, () => this.poll())));
  }
}

/** The rows of one job, by window, and their card. */
class Job {
  constructor(about) {
    this.about = about;
    this.card = jobCard(about, (uid) => "traces.html" + query({ id: uid }));
    this.isSeen = false;
    this.request = null; // the current one
    this.forget();
  }

  forget() {
    this.revision = 0;
    this.windows = new Map();
    this.request = null;
  }

  get isBehind() {
    return this.isSeen && !this.request && this.revision !== this.about.revision;
  }

  async refresh(range) {
    const request = (this.request = {});
    try {
      const found = await this.fetch(range);
      if (request === this.request) await this.take(found); // else another time range was chosen meanwhile
    } finally {
      if (request === this.request) this.request = null;
    }
  }

  fetch(range) {
    return get(url`/api/analysis/${this.about.job}` + query({ from: range, limit: MAX_ROWS, after: this.revision || "" }));
  }

  take(found) {
    const present = new Set(found.present.map(Date.parse));
    for (const start of [...this.windows.keys()]) {
      if (!present.has(start)) this.windows.delete(start); // rows without a window are always sent completely
    }
    for (const start of found.changed) this.windows.set(Date.parse(start), []);
    for (const row of found.rows) {
      const start = row.window_start ? Date.parse(row.window_start) : 0;
      if (!this.windows.has(start)) this.windows.set(start, []);
      this.windows.get(start).push(row);
    }
    this.revision = found.revision;
    const starts = [...this.windows.keys()].sort((one, other) => one - other);
    return this.card.update(starts.flatMap((start) => this.windows.get(start)));
  }
}

// Redraw only if the text changes, so that links stay usable and screen readers do not repeat it.
function showIfOther(place, children) {
  const drawn = el("div", {}, children);
  if (place.textContent !== drawn.textContent) show(place, ...drawn.childNodes);
}

function nothing({ tracing, behind, status }) {
  if (behind > 0) return loading(`Reading ${behind.toLocaleString("en")} result messages…`);
  if (status?.state === "running" && !status.silent) return loading(`The analysis is running, no results yet (${(status.events ?? 0).toLocaleString("en")} events so far).`);
  return empty(
    "No results yet",
    el("p", {}, "Start the analysis, on this machine or another; it needs Spark:"),
    el("div", { class: "hint" }, el("pre", {}, "pip install 'warrenmq[spark]'\nwarren analyze --follow"), el("p", {}, "Without --follow it analyzes the last hour once. It reads the recorded events, so tracing must be on.")),
    tracing.enabled && !tracing.failure ? el("p", {}, "Tracing is on.") : howToSwitchOn(tracing),
  );
}
