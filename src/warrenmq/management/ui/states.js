// Loading, empty and error states.

import { el, show } from "./dom.js";

export const loading = (text = "Loading…") =>
  el("div", { class: "state", role: "status" }, el("div", { class: "spinner" }), text);

export const empty = (title, ...more) => el("div", { class: "state" }, el("h2", {}, title), ...more);

export function failed(error, again) {
  const retry = again && el("div", { class: "row" }, el("button", { type: "button", onclick: again }, "Try again"));
  return el("div", { class: "state failed", role: "alert" }, el("h2", {}, "Request failed"), el("p", {}, error.message), retry);
}

/** Show a loading state, then the result of `draw`, or its error with a button to retry. A later call wins. */
export async function during(place, draw) {
  const turn = (place.warrenTurn = (place.warrenTurn ?? 0) + 1);
  const isCurrent = () => place.warrenTurn === turn;
  // Do not flicker if the result comes quickly.
  const timer = setTimeout(() => isCurrent() && show(place, el("div", { class: "card" }, loading())), 150);
  try {
    const drawn = await draw();
    if (isCurrent()) show(place, drawn);
  } catch (error) {
    if (isCurrent()) show(place, el("div", { class: "card" }, failed(error, () => during(place, draw))));
    if (!("status" in error)) throw error; // a bug of ours: report it in the console
  } finally {
    clearTimeout(timer);
  }
}
