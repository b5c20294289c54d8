// Client of the broker's HTTP API. Every request carries the session's token; a 401 leads to the sign-in page.

let csrf = "-"; // any value marks a request of a page

export class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

/** A path with its values escaped: url`/api/traces/${id}`. */
export function url(texts, ...values) {
  return texts.reduce((path, text, place) => path + encodeURIComponent(values[place - 1]) + text);
}

/** A query string without empty values: query({queue: "q", kind: ""}) is "?queue=q". */
export function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? "?" + new URLSearchParams(given) : "";
}

/** The signed-in user. */
export async function session() {
  const found = await get("/api/session");
  csrf = found.csrf ?? csrf;
  return found;
}

export const get = (path, options = {}) => send("GET", path, undefined, options);
export const put = (path, body) => send("PUT", path, body);
export const post = (path, body) => send("POST", path, body, { stays: true });
export const remove = (path) => send("DELETE", path);

async function send(method, path, body, { stays = false, signal } = {}) {
  const headers = { "X-Warren-CSRF": csrf, Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new ApiError(0, "Cannot reach the broker. Is it running?");
  }
  if (answer.status === 401 && !stays) return signIn();
  if (answer.status === 204 || answer.status === 201) return null;
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new ApiError(answer.status, value.reason ?? `The broker responded with ${answer.status}.`);
  return value;
}

/** Go to the sign-in page, which returns to this page. Never resolves. */
export function signIn() {
  location.assign(`/ui/login.html${query({ next: location.pathname + location.search })}`);
  return new Promise(() => {});
}
