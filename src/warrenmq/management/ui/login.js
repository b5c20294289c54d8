// Signs in with a user of the broker, then opens the requested page.

import { post } from "./api.js";
import { el, show } from "./dom.js";
import { brand, themeSwitch } from "./frame.js";

const notice = el("div", { class: "notice failed", role: "alert", hidden: true });
const name = el("input", { name: "username", autocomplete: "username", required: true });
const password = el("input", { name: "password", type: "password", autocomplete: "current-password" });
const button = el("button", { class: "main" }, "Sign in");
const form = el(
  "form",
  { class: "card", onsubmit: submit },
  notice,
  el("label", { class: "field" }, el("span", {}, "User"), name),
  el("label", { class: "field" }, el("span", {}, "Password"), password),
  button,
);
show(document.body, el("main", {}, el("div", { class: "sign-in" }, brand(), form, el("div", { class: "row" }, el("span", { class: "push" }, themeSwitch())))));
name.focus();

async function submit(event) {
  event.preventDefault();
  button.disabled = true;
  try {
    await post("/api/login", { username: name.value, password: password.value });
    location.assign(nextPage());
  } catch (error) {
    notice.textContent = error.status === 401 ? "Unknown user or wrong password." : error.message;
    notice.hidden = false;
    password.select();
  } finally {
    button.disabled = false;
  }
}

// Only our own pages: a link to the sign-in page must not redirect to another site.
function nextPage() {
  const home = "/ui/traces.html";
  const next = new URLSearchParams(location.search).get("next") ?? home;
  if (!URL.canParse(next, location.href)) return home;
  const { pathname, search } = new URL(next, location.href);
  return pathname.startsWith("/ui/") ? pathname + search : home;
}
