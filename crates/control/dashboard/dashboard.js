// The dashboard of a running server. It asks the HTTP API with the token that its reader gives, follows the events, and
// draws everything with text nodes: nothing that comes from mail is ever markup.
"use strict";

const TOKEN = "mailrace-token";
const LISTS_EVERY_MS = 5000;
const LOG_LINES_MAX = 200;
const ROWS = 20;

let token = sessionStorage.getItem(TOKEN);
let span = "hour";
let samples = [];
let isOperator = true;
let logPaused = false;
let session = 0;

const byId = (id) => document.getElementById(id);

/** An element with attributes and children; text is always text. */
function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An element of a drawing. */
function svg(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Asks the API; the answer is JSON. */
async function ask(path, act) {
  const options = { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" };
  if (act !== undefined) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(act);
  }
  const response = await fetch(path, options);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Problem(response.status, answer.detail || answer.title || response.statusText);
  return answer;
}

// Numbers and times, for people.

function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 || value === 0 ? count(value) : value.toFixed(value >= 10 ? 1 : 2);
}

function millis(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value.toFixed(value >= 10 ? 0 : 1)} ms`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const [size, unit] = units.find(([size]) => seconds >= size) || [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

function octets(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 1024 && power < units.length - 1) {
    value /= 1024;
    power += 1;
  }
  return `${power && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[power]}`;
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

/** A table that becomes a list of cards where there is little room. `columns`: heading, cell, whether it is a number. */
function table(caption, columns, rows, empty) {
  if (rows.length === 0) return el("p", { class: "empty" }, empty);
  const side = (isNumber) => (isNumber ? { class: "number" } : {});
  const head = columns.map(([heading, , isNumber]) => el("th", { scope: "col", ...side(isNumber) }, heading));
  const body = rows.map((row) =>
    el("tr", {}, ...columns.map(([heading, cell, isNumber]) =>
      el("td", { "data-label": heading, ...side(isNumber) }, el("span", {}, cell(row) ?? "")))));
  return el("div", { class: "scroll" },
    el("table", { class: "rows", "aria-label": caption }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
}

function pill(text, kind) {
  return el("span", { class: `pill ${kind}` }, text);
}

function act(label, run) {
  return isOperator ? el("button", { type: "button", onclick: run }, label) : null;
}

/** Replaces the content, unless its reader is about to use a button in it. */
function show(id, ...children) {
  const place = byId(id);
  if (place.contains(document.activeElement) && document.activeElement !== document.body) {
    if (place.textContent === el("div", {}, ...children).textContent) return;
    const label = document.activeElement.textContent;
    const row = document.activeElement.closest("tr")?.firstChild?.textContent;
    place.replaceChildren(...children);
    const again = [...place.querySelectorAll("button, a")].find((button) =>
      button.textContent === label && button.closest("tr")?.firstChild?.textContent === row);
    again?.focus();
    return;
  }
  place.replaceChildren(...children);
}

// Overview

function tile(name, value, detail) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value, detail ? el("small", {}, detail) : null));
}

function showTiles(sample) {
  byId("tiles").replaceChildren(
    tile("Accepted", `${rate(sample.accepted)}/s`, "messages"),
    tile("Delivered", `${rate(sample.delivered)}/s`, "recipients"),
    tile("Deferred", `${rate(sample.deferred)}/s`, `failed ${rate(sample.failed)}/s`),
    tile("In the queue", count(sample.queued), sample.held ? `${count(sample.held)} held` : "recipients"),
    tile("Oldest message", duration(sample.oldest_seconds), `${count(sample.messages)} messages`),
    tile("Time to a 250", millis(sample.commit_p50_ms), `99 %: ${millis(sample.commit_p99_ms)}`),
    tile("Write and sync", millis(sample.sync_p99_ms), "99 %"),
    tile("Load", sample.load === null ? "–" : sample.load.toFixed(2), `${count(sample.sessions)} sessions`));
}

/** A chart of some members of the samples. */
function chart(title, unit, series) {
  const [width, height, left, bottom] = [480, 150, 44, 18];
  const values = samples.flatMap((sample) => series.map(([, member]) => sample[member] ?? 0));
  const top = nice(Math.max(...values, 0));
  const [first, last] = [samples[0].time, samples[samples.length - 1].time];
  const x = (time) => left + ((time - first) / Math.max(last - first, 1)) * (width - left - 4);
  const y = (value) => 6 + (1 - value / top) * (height - bottom - 6);
  const lines = [0, 0.5, 1].flatMap((part) => [
    svg("line", { class: "grid", x1: left, x2: width, y1: y(top * part), y2: y(top * part) }),
    svg("text", { x: left - 6, y: y(top * part) + 4, "text-anchor": "end" }, axis(top * part)),
  ]);
  const times = [first, (first + last) / 2, last].map((time, place) =>
    svg("text", { x: x(time), y: height - 3, "text-anchor": ["start", "middle", "end"][place] }, clock(time)));
  const paths = series.map(([, member], place) => svg("path", { class: `s${place + 1}`, d: path(member, x, y) }));
  const now = series.map(([name, member]) => `${name} ${rate(samples[samples.length - 1][member])}`).join(", ");
  const label = `${title}, ${unit}, from ${clock(first)} to ${clock(last)}; now: ${now}`;
  return el("figure", {},
    el("figcaption", {}, el("b", {}, `${title}, ${unit}`),
      ...series.map(([name], place) => el("span", { class: `s${place + 1}` }, name))),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...lines, ...times, ...paths));
}

/** A line with gaps where there is no value. */
function path(member, x, y) {
  let pen = "M";
  let text = "";
  for (const sample of samples) {
    const value = sample[member];
    if (value === null || value === undefined) {
      pen = "M";
      continue;
    }
    text += `${pen}${x(sample.time).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  }
  return text || "M0 0";
}

function nice(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

function axis(value) {
  if (value >= 1e6) return `${value / 1e6} M`;
  if (value >= 1e4) return `${value / 1e3} k`;
  return String(Number(value.toPrecision(3)));
}

function showCharts() {
  if (samples.length < 2) {
    byId("charts").replaceChildren(el("p", { class: "empty" },
      "The charts begin with the server: the first lines appear in half a minute. Meanwhile send it a message: ",
      el("code", {}, "swaks --server 127.0.0.1 --to postmaster@localhost")));
    return;
  }
  byId("charts").replaceChildren(
    chart("Mail", "each second", [["accepted", "accepted"], ["delivered", "delivered"], ["deferred", "deferred"], ["failed", "failed"]]),
    chart("Queue", "recipients", [["queued", "queued"], ["held", "held"]]),
    chart("Time to a 250", "ms", [["half", "commit_p50_ms"], ["99 %", "commit_p99_ms"], ["sync, 99 %", "sync_p99_ms"]]));
}

async function readHistory() {
  const history = await ask(`/api/v1/history?span=${span}`);
  samples = history.samples;
  showCharts();
}

// Next hops, destinations, queues

/** How long a pause lasts: until a time, or until somebody ends it. */
function pauseText(row) {
  return row.paused_until ? `paused until ${row.paused_until.slice(11, 16)} UTC` : "paused";
}

function hopState(hop) {
  if (hop.paused) return pill(pauseText(hop), "warn");
  if (hop.dead_until) return pill(`unreachable, next try in ${duration(hop.dead_for_seconds)}`, "bad");
  if (hop.failures) return pill(`${hop.failures} failed in a row`, "warn");
  if (hop.error) return pill("had errors", "warn");
  return pill(hop.attempts ? "busy" : "well", "good");
}

async function readNextHops() {
  const { next_hops } = await ask(`/api/v1/next-hops?order=trouble&limit=${ROWS}`);
  const columns = [
    ["Next hop", (hop) => hop.next_hop],
    ["State", hopState],
    ["Attempts", (hop) => `${hop.attempts} of ${hop.concurrency}`],
    ["Last error", (hop) => hop.error],
    ["Act", (hop) => el("span", { class: "buttons" }, ...[
      act(hop.paused ? "Resume" : "Pause", () => pause({ next_hop: hop.next_hop }, `the next hop ${hop.next_hop}`, hop.paused)),
      act("Redirect", () => redirect(hop.next_hop)),
    ].filter(Boolean))],
  ];
  const { redirects } = await ask("/api/v1/redirects");
  show("next-hop-list", table("Next hops", columns, next_hops,
    "No mail has left for another host yet. Next hops appear with the first message to one."),
    ...(redirects.length ? [el("h3", {}, "Redirected mail"), redirectTable(redirects)] : []));
  const dead = next_hops.filter((hop) => hop.dead_until);
  showAlert("dead", dead.length && "bad", dead.length === 1
    ? `${dead[0].next_hop} cannot be reached: ${dead[0].error}`
    : `${dead.length} next hops cannot be reached, ${dead[0]?.next_hop} among them.`);
}

function redirectTable(redirects) {
  const from = (row) => row.from.next_hop ?? row.from.destination;
  return table("Redirected mail", [
    ["Mail for", (row) => (row.from.next_hop ? "the next hop" : "the destination")],
    ["Name", from],
    ["Goes to", (row) => row.to],
    ["Act", (row) => act("End", async () => {
      if (!(await confirmed("End the redirect?", `Mail for ${from(row)} goes there again.`, "End it"))) return;
      await attempt(() => ask("/api/v1/redirect/end", { from: row.from }));
      refresh();
    })],
  ], redirects, "");
}

/** Asks where the mail of a next hop is to go. */
async function redirect(nextHop) {
  const to = await asked(`Redirect the mail for ${nextHop}?`,
    "It goes there until you end the redirect, also after a restart.", "Host or [address], with a port", "Redirect");
  if (!to) return;
  if (await attempt(() => ask("/api/v1/redirect", { from: { next_hop: nextHop }, to }))) {
    notify(`Mail for ${nextHop} goes to ${to}.`, "good");
  }
  refresh();
}

/** Pauses, for some time if its reader says so, or resumes. */
async function pause(target, name, isPaused) {
  if (isPaused) {
    if (!(await confirmed(`Resume ${name}?`, "Its mail leaves again.", "Resume"))) return;
    await attempt(() => ask("/api/v1/resume", { target }));
  } else {
    const span = await asked(`Pause ${name}?`, "No mail leaves until the time is over, you resume it, or the server starts again.",
      "For how long: 30m, 2h; empty: until it is resumed", "Pause");
    if (span === null) return;
    await attempt(() => ask("/api/v1/pause", span ? { target, for: span } : { target }));
  }
  refresh();
}

async function readDestinations() {
  const { destinations } = await ask(`/api/v1/destinations?order=recipients&limit=${ROWS}`);
  const name = (row) => el("button", { type: "button", class: "link", onclick: () => searchFor({ destination: row.destination }) }, row.destination);
  const acts = (row) => el("span", { class: "buttons" },
    ...["hold", "release", "retry"].map((verb) => act(title(verb), () => applyTo(verb, { destination: row.destination, queue: row.queue }))).filter(Boolean));
  const columns = [
    ["Destination", name],
    ["Queue", (row) => row.queue],
    ["Recipients", (row) => count(row.recipients), true],
    ["What blocks it", (row) => row.blocked.join("; ") || "nothing: it leaves when it is due"],
    ["Act", acts],
  ];
  show("destination-list", table("Destinations", columns, destinations, "The queue is empty: all mail has left."));
}

async function readQueues() {
  const { queues } = await ask("/api/v1/queues");
  const toggle = (row) => act(row.paused ? "Resume" : "Pause", () => pause({ queue: row.queue }, `the queue ${row.queue}`, row.paused));
  const columns = [
    ["Queue", (row) => row.queue],
    ["State", (row) => (row.paused ? pill(pauseText(row), "warn") : pill("runs", "good"))],
    ["Attempts", (row) => `${count(row.attempts)} of ${count(row.concurrency)}`],
    ["Ready", (row) => count(row.ready), true],
    ["In flight", (row) => count(row.in_flight), true],
    ["Waiting", (row) => count(row.waiting), true],
    ["Held", (row) => count(row.held), true],
    ["Act", toggle],
  ];
  show("queue-list", table("Queues", columns, queues, "No queue is configured."));
  const paused = queues.filter((row) => row.paused).map((row) => row.queue);
  showAlert("paused", paused.length && "warn", `Paused: ${paused.join(", ")}. No mail leaves from there.`);
}

// Search, messages, acts

function title(word) {
  return word[0].toUpperCase() + word.slice(1);
}

function filterOf(form) {
  const filter = {};
  for (const [name, value] of new FormData(form)) {
    if (value.trim()) filter[name] = name === "state" ? [value] : value.trim();
  }
  return filter;
}

function searchFor(filter) {
  const form = byId("search");
  form.reset();
  for (const [name, value] of Object.entries(filter)) form.elements[name].value = value;
  search();
  byId("queue").scrollIntoView();
}

async function search(cursor = null, shown = []) {
  const query = new URLSearchParams({ limit: 50 });
  for (const [name, value] of Object.entries(filterOf(byId("search")))) query.set(name, value);
  if (cursor) query.set("cursor", cursor);
  const page = await attempt(() => ask(`/api/v1/recipients?${query}`));
  if (!page) return;
  const rows = shown.concat(page.recipients);
  // A page may be short, or empty, before the last one.
  if (page.next && rows.length < shown.length + 10) return search(page.next, rows);
  const id = (row) => el("button", { type: "button", class: "link", onclick: () => openMessage(row.id) }, row.id);
  const columns = [
    ["Message", id],
    ["Sender", (row) => row.sender || "<>"],
    ["Recipient", (row) => row.recipient],
    ["Size", (row) => octets(row.size), true],
    ["Accepted", (row) => el("time", { datetime: row.accepted }, row.accepted.slice(0, 19).replace("T", " "))],
    ["State", (row) => (row.until ? `waiting until ${row.until.slice(11, 19)}` : row.state)],
    ["Last error", (row) => row.error],
  ];
  const more = page.next ? el("button", { type: "button", onclick: () => search(page.next, rows) }, "Show more") : null;
  byId("results").replaceChildren(
    table("Recipients found", columns, rows, "No recipient in the queue matches."), ...(more ? [more] : []));
}

async function openMessage(id) {
  // A server without a log file has no history.
  const past = ask(`/api/v1/messages/${id}/history`).catch(() => ({ events: [] }));
  const answers = await attempt(() =>
    Promise.all([ask(`/api/v1/messages/${id}`), ask(`/api/v1/messages/${id}/explanation`), past]));
  if (!answers) return;
  const [{ message, recipients }, { lines }, { events }] = answers;
  const happened = (event) => `${event.time.slice(0, 19).replace("T", " ")} ${event.event} `
    + [event.fields.to, event.fields.relay, event.fields.reply ?? event.fields.reason].filter(Boolean).join(" ");
  const fact = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
  const columns = [
    ["Recipient", (row) => row.recipient],
    ["State", (row) => (row.until ? `waiting until ${row.until.slice(0, 19).replace("T", " ")}` : row.state)],
    ["Attempts", (row) => (row.attempts === null ? "" : count(row.attempts)), true],
    ["Last error", (row) => row.error],
  ];
  const verbs = ["hold", "release", "retry", "bounce", "remove"];
  byId("message-title").textContent = `Message ${id}`;
  byId("message-body").replaceChildren(
    el("dl", {},
      ...fact("Sender", message.sender || "<> (a notice)"),
      ...fact("Client", `${message.client || "local"} ${message.helo}`),
      ...fact("Size", octets(message.size)),
      ...fact("Accepted", `${message.accepted.slice(0, 19).replace("T", " ")} (${duration(message.age_seconds)} ago)`)),
    table("Recipients", columns, recipients, "All its recipients are finished."),
    el("h3", {}, "What it waits for"),
    el("pre", {}, el("code", {}, lines.join("\n"))),
    ...(events.length ? [el("h3", {}, "What happened"), el("pre", {}, el("code", {}, events.map(happened).join("\n")))] : []),
    el("p", { class: "buttons" }, ...verbs.map((verb) => act(title(verb), async () => {
      if (await applyTo(verb, { id: [id] })) byId("message").close();
    })).filter(Boolean)));
  if (!byId("message").open) byId("message").showModal();
}

const CONSEQUENCES = {
  hold: "They stay in the queue until somebody releases them.",
  release: "They are tried now.",
  retry: "They are tried now, instead of at their time.",
  bounce: "Their senders get a notice, and the mail is gone.",
  remove: "The mail is gone, and nobody gets a notice.",
};

/** Counts, asks, acts. Returns whether it was done. */
async function applyTo(verb, filter) {
  const what = Object.keys(filter).length ? { filter } : { all: true };
  const counted = await attempt(() => ask(`/api/v1/recipients/${verb}`, { ...what, dry_run: true }));
  if (!counted) return false;
  const number = counted.recipients;
  if (number === 0) {
    notify(`Nothing to ${verb}: no recipient is selected.`, "warn");
    return false;
  }
  const text = `${count(number)} recipient${number === 1 ? "" : "s"}. ${CONSEQUENCES[verb]}`;
  if (!(await confirmed(`${title(verb)} this mail?`, text, title(verb)))) return false;
  const done = await attempt(() => ask(`/api/v1/recipients/${verb}`, what));
  if (done) notify(`${title(verb)}: ${count(done.recipients)} recipient${done.recipients === 1 ? "" : "s"}.`, "good");
  refresh();
  return Boolean(done);
}

/** Asks for a text; null: it is not to be done. */
async function asked(question, text, label, yes) {
  byId("confirm-label").textContent = label;
  byId("confirm-input").value = "";
  byId("confirm-field").hidden = false;
  const isDone = await confirmed(question, text, yes, true);
  byId("confirm-field").hidden = true;
  return isDone ? byId("confirm-input").value.trim() : null;
}

function confirmed(question, text, yes, hasField = false) {
  const dialog = byId("confirm");
  byId("confirm-field").hidden = !hasField;
  byId("confirm-title").textContent = question;
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

// Machine

const GAUGE_FORMAT = { bytes: octets, percent: (value) => `${value.toFixed(1)} %`, inodes: count, tasks: (value) => value.toFixed(2) };

/** Free space and inodes are of a disk, and named by a folder of it. */
function isOfDisk(gauge) {
  return gauge.gauge.startsWith("free ");
}

async function readLimits() {
  const load = await ask("/api/v1/limits");
  const format = (unit, value) => (value === null || value === undefined ? "absent" : GAUGE_FORMAT[unit](value));
  const inForce = load.limits.filter((limit) => limit.state === "in-force");
  showAlert("limits", inForce.length && "warn",
    inForce.map((limit) => `${limit.gauge} is at ${format(limit.unit, limit.value)}: ${limit.effect}`).join("; "));
  const bound = (limit) => (limit.above !== null ? `above ${format(limit.unit, limit.above)}` : `below ${format(limit.unit, limit.below)}`);
  const state = { "in-force": ["in force", "bad"], "not-in-force": ["not in force", "good"], "gauge-absent": ["cannot work", "warn"] };
  show("limits", el("h3", {}, "Limits by load"), table("Limits", [
    ["Gauge", (limit) => limit.gauge],
    ["Limit", bound],
    ["Effect", (limit) => limit.effect],
    ["State", (limit) => pill(...state[limit.state])],
  ], load.limits, "No limit by load is configured."));
  const columns = [
    ["Gauge", (gauge) => gauge.gauge],
    ["Value", (gauge) => format(gauge.unit, gauge.value), true],
    ["Source", (gauge) => gauge.source],
  ];
  const [disks, others] = [true, false].map((ofDisk) => load.gauges.filter((gauge) => isOfDisk(gauge) === ofDisk));
  show("disks", el("h3", {}, "Disks"), table("Disks", columns, disks, "No disk was looked at yet."));
  show("gauges", el("h3", {}, "Gauges"), table("Gauges", columns, others, "No gauge was read yet."));
}

async function readLanes() {
  const { lanes } = await ask("/api/v1/lanes");
  show("lanes", el("h3", {}, "Lanes of the spool"), table("Lanes", [
    ["Lane", (lane) => lane.lane],
    ["Messages", (lane) => count(lane.messages), true],
    ["Accepted", (lane) => count(lane.accepted), true],
    ["Write and sync, half", (lane) => millis(lane.sync_p50_ms), true],
    ["99 %", (lane) => millis(lane.sync_p99_ms), true],
    ["Segments", (lane) => `${count(lane.segments)}, ${count(lane.segments_free)} free`],
    ["State", (lane) => (lane.batches_failed ? pill(`${count(lane.batches_failed)} batches failed`, "bad") : pill("well", "good"))],
  ], lanes, "The spool has no lane."));
}

async function readState() {
  const response = await fetch("/readyz", { cache: "no-store" });
  const state = byId("state");
  const why = response.ok ? "Takes mail" : (await response.json().catch(() => ({}))).detail || "Takes no mail";
  state.textContent = why;
  state.className = `pill ${response.ok ? "good" : "bad"}`;
}

// Alerts

function showAlert(key, kind, text) {
  const old = byId(`alert-${key}`);
  if (!kind) {
    old?.remove();
    return;
  }
  const alert = old || el("p", { id: `alert-${key}` });
  alert.className = `alert ${kind}`;
  if (alert.textContent !== text) alert.textContent = text;
  if (!old) byId("alerts").append(alert);
}

function notify(text, kind) {
  showAlert("notice", kind, text);
  clearTimeout(notify.timer);
  notify.timer = setTimeout(() => showAlert("notice", null), 8000);
}

/** Runs what may fail, and says why it did. */
async function attempt(run) {
  try {
    return await run();
  } catch (problem) {
    if (problem.status === 401) signIn("The token is wrong, has expired, or was revoked.");
    else if (problem.status === 403) {
      isOperator = false;
      notify("Your token may look, and not act.", "warn");
    } else notify(problem.message || "The server does not answer.", "bad");
    return null;
  }
}

// Live

async function refresh() {
  const mine = session;
  const readers = [readNextHops, readDestinations, readQueues, readLanes, readLimits];
  for (const read of readers) {
    if (mine !== session || document.hidden) return;
    await attempt(read);
  }
}

/** Follows the events, and connects again when they end. */
async function follow() {
  const mine = session;
  let pause = 1000;
  while (mine === session) {
    try {
      const response = await fetch("/api/v1/events", { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" });
      if (response.status === 401) return signIn("The token is wrong, has expired, or was revoked.");
      if (response.ok) {
        pause = 1000;
        await readState();
        await readEvents(response.body.getReader(), mine);
      }
    } catch {
      // The server is gone, or stops.
    }
    if (mine !== session) return;
    byId("state").textContent = "No connection";
    byId("state").className = "pill bad";
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, 15000);
  }
}

async function readEvents(reader, mine) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done || mine !== session) return reader.cancel();
    text += decoder.decode(value, { stream: true });
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) handleEvent(text.slice(0, end));
  }
}

function handleEvent(text) {
  const field = (name) => text.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
  const data = field("data");
  if (!data) return;
  const value = JSON.parse(data);
  if (field("event") === "sample") showSample(value);
  else if (field("event") === "log") showLogLine(value);
  else if (field("event") === "skipped") showLogLine({ event: `${count(value.events)} lines were left out: too many to show` });
}

function showSample(sample) {
  showTiles(sample);
  const last = samples[samples.length - 1];
  const step = span === "hour" ? 10 : 240;
  if (!last || sample.time - last.time >= step) attempt(readHistory);
}

function showLogLine(line) {
  if (logPaused) return;
  const { time, event, ...fields } = line;
  const text = Object.entries(fields).map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(" ");
  const lines = byId("log-lines");
  const kind = { error: "error", warning: "error" }[event];
  lines.prepend(el("li", { class: kind }, el("time", {}, time ? `${time.slice(11, 19)} ` : ""), el("b", {}, `${event} `), text));
  while (lines.childElementCount > LOG_LINES_MAX) lines.lastElementChild.remove();
  byId("log-empty")?.remove();
}

// Sign in and out

function signIn(error = "") {
  session += 1;
  token = null;
  sessionStorage.removeItem(TOKEN);
  byId("content").hidden = byId("sign-out").hidden = true;
  byId("sign-in").hidden = false;
  byId("sign-in-error").textContent = error;
  byId("state").textContent = "Not signed in";
  byId("state").className = "pill";
  byId("token").focus();
}

async function start() {
  session += 1;
  byId("sign-in").hidden = true;
  byId("content").hidden = byId("sign-out").hidden = false;
  showCharts();
  byId("log-lines").replaceChildren(el("li", { id: "log-empty", class: "empty" }, "Lines appear as they are written. They need a token with the role operate."));
  if (await attempt(() => readHistory().then(() => true))) {
    if (samples.length) showTiles(samples[samples.length - 1]);
    follow();
    refresh();
    search();
  }
}

document.addEventListener("DOMContentLoaded", () => {
  byId("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    token = byId("token").value.trim();
    byId("token").value = "";
    sessionStorage.setItem(TOKEN, token);
    start();
  });
  byId("sign-out").addEventListener("click", () => signIn());
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  for (const button of byId("search").querySelectorAll("[data-act]")) {
    button.addEventListener("click", () => applyTo(button.dataset.act, filterOf(byId("search"))).then(() => search()));
  }
  for (const button of document.querySelectorAll("[data-span]")) {
    button.addEventListener("click", () => {
      span = button.dataset.span;
      for (const other of document.querySelectorAll("[data-span]")) other.setAttribute("aria-pressed", String(other === button));
      attempt(readHistory);
    });
  }
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close("no"));
  }
  byId("confirm-yes").addEventListener("click", () => byId("confirm").close("yes"));
  byId("pause-log").addEventListener("click", (event) => {
    logPaused = !logPaused;
    event.target.setAttribute("aria-pressed", String(logPaused));
  });
  setInterval(() => token && refresh(), LISTS_EVERY_MS);
  if (token) start();
  else signIn();
});
