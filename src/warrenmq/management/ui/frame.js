// The frame of every page: navigation, user, theme. A page calls `start` with its draw function.

import { remove, session, signIn } from "./api.js";
import { el, show } from "./dom.js";
import { failed } from "./states.js";

// A page is a line here, an .html and a .js file.
const PAGES = [
  { title: "Traces", file: "traces.html" },
  { title: "Trace rules", file: "trace_rules.html" },
  { title: "Analysis", file: "analysis.html" },
];

/** Draw the frame, then the page: `draw(main, session)`. */
export async function start(title, draw) {
  document.title = `${title} · WarrenMQ`;
  const main = el("main");
  show(document.body, main);
  try {
    const who = await session();
    show(document.body, header(who), main);
    await draw(main, who);
  } catch (error) {
    show(main, failed(error, () => location.reload()));
    if (!("status" in error)) throw error;
  }
}

export const brand = () => el("a", { class: "brand", href: "/ui/traces.html" }, el("img", { src: "logo.svg", alt: "" }), "WarrenMQ");

export function themeSwitch() {
  const name = () => (window.warrenTheme.current() === "dark" ? "Light" : "Dark");
  const button = el("button", { type: "button", class: "small", title: "Switch between light and dark" }, name());
  button.addEventListener("click", () => {
    window.warrenTheme.switch();
    button.textContent = name();
  });
  return button;
}

function header(who) {
  const here = location.pathname.split("/").pop();
  const links = PAGES.map(({ title, file }) => el("a", { href: file, "aria-current": file === here && "page" }, title));
  const signOut = who.csrf && el("button", { type: "button", class: "small", onclick: leave }, "Sign out");
  const user = el("span", { class: "name", title: who.user }, who.user);
  return el("header", { class: "top" }, brand(), el("nav", { "aria-label": "Pages" }, links), el("div", { class: "who" }, user, themeSwitch(), signOut));
}

async function leave() {
  await remove("/api/session");
  signIn();
}
