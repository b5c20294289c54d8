// Formats times, durations and sizes. Times are integer microseconds since 1970; a Date has only milliseconds.

/** "2026-11-16T04:30:00.123456Z" in microseconds. */
export function microseconds(iso) {
  if (!iso) return null;
  const [, seconds, fraction = ""] = /^(.*?)(?:\.(\d+))?Z$/.exec(iso);
  return Date.parse(seconds + "Z") * 1000 + Number(fraction.padEnd(6, "0").slice(0, 6));
}

const two = (number) => String(number).padStart(2, "0");

/** Local time with microseconds, and with its day by default. */
export function clock(iso, withDay = true) {
  const time = microseconds(iso);
  if (time === null) return "";
  const date = new Date(Math.floor(time / 1000));
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const fraction = String(time % 1_000_000).padStart(6, "0");
  const moment = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${fraction}`;
  return withDay ? `${day} ${moment}` : moment;
}

/** The zone of `clock`: "UTC+1". */
export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  if (minutes === 0) return "UTC";
  const hours = `${Math.floor(Math.abs(minutes) / 60)}${minutes % 60 ? ":" + two(Math.abs(minutes) % 60) : ""}`;
  return `UTC${minutes < 0 ? "-" : "+"}${hours}`;
}

const STEPS = [
  [1_000, 1, "µs", 0],
  [1_000_000, 1_000, "ms", 2],
  [60_000_000, 1_000_000, "s", 2],
];

/** 850 µs, 12.4 ms, 3.21 s, 2 min 5 s, 3 h 4 min, 2 d 3 h. */
export function duration(us) {
  if (us === null || us === undefined) return "–";
  for (const [below, unit, name, digits] of STEPS) {
    if (us < below) return `${Number((us / unit).toFixed(digits))} ${name}`;
  }
  const seconds = Math.round(us / 1_000_000);
  if (seconds < 3600) return pair(seconds, 60, "min", "s");
  if (seconds < 86_400) return pair(Math.round(seconds / 60), 60, "h", "min");
  return pair(Math.round(seconds / 3600), 24, "d", "h");
}

function pair(count, base, large, small) {
  const rest = count % base;
  return `${Math.floor(count / base)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

/** 17 B, 4.2 KiB, 3 MiB. */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB"];
  let step = 0;
  while (bytes >= 1024 && step < units.length - 1) {
    bytes /= 1024;
    step += 1;
  }
  return `${Number(bytes.toFixed(1))} ${units[step]}`;
}

/** dead_lettered -> dead-lettered. */
export const words = (kind) => kind.replaceAll("_", "-");

/** Microseconds to come, to hundredths of a second: the broker counts them from the beginning of its turn. */
export const ahead = (us) => duration(Math.max(0, Math.round(us / 1e4) * 1e4));

/** "04:50:05" in local time, with the day unless it is that of `now`. */
export function moment(iso, now) {
  const [day, time] = clock(iso).split(" ");
  const seconds = time.slice(0, 8);
  return day === clock(now).split(" ")[0] ? seconds : `${day} ${seconds}`;
}

/** The text of a note, or until when a message waits; empty for other events. */
export function details({ kind, time, due_time, retry_max, attempt, note }) {
  if (due_time === undefined) return note ?? "";
  const delay = ahead(microseconds(due_time) - microseconds(time));
  return kind === "scheduled" ? `for ${moment(due_time, time)}, in ${delay}` : `retry ${attempt} of ${retry_max} in ${delay}`;
}

/** The details of an event, its reason, the number of messages if it affected several, the exchange of a dead letter; may be empty. */
export function why(event) {
  const { kind, reason, messages, queue, exchange } = event;
  const many = messages && `${messages.toLocaleString("en")} message${messages === 1 ? "" : "s"}`;
  const way = queue !== undefined && ["routed", "unroutable"].includes(kind) && `to exchange ${exchange || "(default)"}`;
  const because = reason && (kind === "retried" ? `because ${words(reason)}` : words(reason));
  return [details(event), because, many, way].filter(Boolean).join(", ");
}

/** True if an event removed messages of a queue on disk without identifying them. */
export const removedSome = ({ messages, reason }) => messages > 0 && !["purged", "queue_deleted"].includes(reason);

const GROUPS = {
  info: ["published", "routed", "enqueued", "delivered", "waiting", "processing", "delayed"],
  note: ["noted"],
  ok: ["acked", "confirmed", "tx_committed"],
  warn: ["requeued", "retried", "scheduled", "republished"],
  bad: ["lost", "nacked", "rejected", "unroutable", "returned", "expired", "dropped", "dead_lettered", "tx_rolled_back"],
};

/** What a kind of event means: info, note, ok, warn, bad or quiet; also the class and the variable of its colour. */
export function group(kind) {
  return Object.keys(GROUPS).find((name) => GROUPS[name].includes(kind)) ?? "quiet";
}
