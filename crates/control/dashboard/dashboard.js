// The dashboard of a running server: signs in, reads one overview in a cycle, and follows the events. While the page is
// hidden it asks nothing. Its parts:
//
//   server.js    requests, and who is signed in      elements.js  elements, numbers and times as text
//   alerts.js    what needs attention, notices       charts.js    charts of the last hour or day
//   lists.js     next hops, destinations, queues,    messages.js  search, messages
//                the machine                         acts.js      what operators do
//   explanations.js  values of the server as sentences

import { connectDialog } from "/dashboard/acts.js";
import { attempt, clearAlerts, showAlerts } from "/dashboard/alerts.js";
import { draw, isBehind, showCharts, spanShown } from "/dashboard/charts.js";
import { byId, count, duration, el, millis, plural, rate, show } from "/dashboard/elements.js";
import { alertsOf, isOverloaded, showLists, showNodes } from "/dashboard/lists.js";
import { connectSearch, search, showSearchActs } from "/dashboard/messages.js";
import { ask, changed, isOperator, request, session, setToken, signOut } from "/dashboard/server.js";

const OVERVIEW_EVERY_MS = 5000;
const NODES_EVERY_MS = 15000;
const RECONNECT_MS_MAX = 15000;
const LOG_LINES_MAX = 200;
const DRAWN = [
  "tiles", "readings", "charts", "next-hop-list", "destination-list", "queue-list", "results", "explanation", "search-acts", "nodes",
  "lanes", "disks", "limits", "gauges", "certificates", "log-lines",
];
// Recipients a second whose attempts fail; fewer are usual where few are delivered.
const FAILURES_SHOWN = 1;

let processors = 1;
let nodesReadAt = -Infinity;
let stream = null;
let isLogPaused = false;
let isLogOnScreen = false;
let isStale = false;
let reading = null;
let chartsWidth = 0;

// Overview

function tile(name, value, details, kind = "") {
  return el("div", { class: kind }, el("dt", {}, name), el("dd", {}, el("span", {}, value), ...details.filter(Boolean).map((text) => el("small", {}, text))));
}

function showTiles(sample) {
  const isHigh = isOverloaded(sample.load ?? 0, processors);
  const fails = sample.failed + sample.deferred > Math.max(sample.delivered, FAILURES_SHOWN);
  show("tiles",
    tile("Waiting", count(sample.queued), [
      sample.queued ? `oldest ${duration(sample.oldest_seconds)}` : "recipients", sample.held ? `${count(sample.held)} held` : null]),
    tile("Coming in", `${rate(sample.accepted)}/s`, ["messages", plural(sample.sessions, "open session")]),
    tile("Going out", `${rate(sample.delivered)}/s`, [
      "recipients", `${rate(sample.deferred)}/s deferred`, sample.failed ? `${rate(sample.failed)}/s failed` : null], fails ? "warn" : ""));
  show("readings",
    tile("Time until the 250", millis(sample.commit_p50_ms), [sample.commit_p99_ms === null ? "no mail" : `99 % within ${millis(sample.commit_p99_ms)}`]),
    tile("Write and sync", millis(sample.sync_p99_ms), [sample.sync_p99_ms === null ? "no writes" : "99 % are faster"]),
    tile("Load", sample.load === null ? "–" : sample.load.toFixed(1), [`on ${plural(processors, "processor")}`], isHigh ? "warn" : ""));
}

async function readHistory(span = spanShown()) {
  const history = await ask(`/api/v1/history?span=${span}`);
  showCharts(history.samples, span);
  if (history.samples.length && !byId("tiles").childElementCount) showTiles(history.samples[history.samples.length - 1]);
}

/** One request for all lists. */
async function readOverview() {
  const mine = session.number;
  const { role, server } = await ask("/api/v1/overview");
  if (mine !== session.number) return;
  if (role !== session.role) showRole(role);
  processors = server.processors;
  showState(server.unready ?? "Takes mail", server.unready ? "bad" : "good");
  showLists(server);
  showAlerts(alertsOf(server));
  await readNodes(server.in_cluster);
}

/** The other nodes are asked less often, since each has to answer. */
async function readNodes(inCluster) {
  if (!inCluster) return showNodes(null);
  if (performance.now() - nodesReadAt < NODES_EVERY_MS) return undefined;
  nodesReadAt = performance.now();
  // The other nodes may be out of reach; the lists are shown all the same.
  const answer = await ask("/api/v1/cluster/nodes").catch(() => null);
  return showNodes(answer && answer.nodes);
}

function showRole(role) {
  session.role = role;
  byId("role").textContent = isOperator() ? "operator" : "reader: may look, and not act";
  showSearchActs();
  byId("log-empty").textContent = isOperator() ? "Lines appear as they are written, while this part is on the screen." : "Lines of the log need a token with the role operate, since they name users.";
  byId("pause-log").hidden = !isOperator();
  updateStream();
}

function showState(text, kind) {
  if (byId("state").textContent !== text) byId("state").textContent = text;
  byId("state").className = `pill ${kind}`;
}

/** Reads the lists, one reading at a time: what is asked for meanwhile comes after it. */
function refresh() {
  if (!session.token || document.hidden) return Promise.resolve();
  isStale = true;
  reading ??= readWhileStale().finally(() => { reading = null; });
  return reading;
}

async function readWhileStale() {
  while (isStale && session.token) {
    isStale = false;
    await attempt(readOverview);
  }
}

// Events

const wantsLog = () => isOperator() && isLogOnScreen && !isLogPaused;

/** Connects to the events that are wanted now: those of the log only while it is on the screen. */
function updateStream() {
  const wanted = !session.token || document.hidden ? null : wantsLog() ? "yes" : "no";
  if (stream?.log === wanted) return;
  stream?.controller.abort();
  stream = wanted && { log: wanted, controller: new AbortController() };
  if (stream) follow(stream);
}

/** Follows the events, and connects again when they end. */
async function follow(mine) {
  let wait = 1000;
  while (mine === stream) {
    try {
      const response = await request(`/api/v1/events?log=${mine.log}`, { signal: mine.controller.signal });
      if (response.status === 401) return signOut("The token is wrong, has expired, or was revoked.");
      if (response.ok) {
        wait = 1000;
        await readEvents(response.body.getReader(), mine);
      }
    } catch {
      // The server is gone, or stops; or other events are wanted.
    }
    if (mine !== stream) return undefined;
    showState("No connection", "bad");
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, RECONNECT_MS_MAX);
    refresh();
  }
  return undefined;
}

async function readEvents(reader, mine) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done || mine !== stream) return;
    text += decoder.decode(value, { stream: true });
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) handleEvent(text.slice(0, end));
  }
}

function handleEvent(text) {
  const field = (name) => text.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
  const data = field("data");
  if (!data) return;
  const value = JSON.parse(data);
  const event = field("event");
  if (event === "sample") showSample(value);
  else if (event === "action") changed();
  else if (event === "log") showLogLine(value);
  else if (event === "skipped") showLogLine({ event: `${count(value.events)} lines were left out: too many to show` });
}

function showSample(sample) {
  showTiles(sample);
  if (isBehind()) attempt(() => readHistory());
}

function showLogLine(line) {
  const { time, event, ...fields } = line;
  const text = Object.entries(fields).map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(" ");
  const lines = byId("log-lines");
  const kind = { error: "error", warning: "error" }[event];
  lines.prepend(el("li", { class: kind }, el("time", {}, time ? `${time.slice(11, 19)} ` : ""), el("b", {}, `${event} `), text));
  while (lines.childElementCount > LOG_LINES_MAX) lines.lastElementChild.remove();
  byId("log-empty").hidden = true;
}

// Sign in and out

/** Shows the form; nothing of the session before stays on the page. */
function showSignIn(reason) {
  setToken(null);
  updateStream();
  clearAlerts();
  byId("content").hidden = byId("sign-out").hidden = true;
  byId("sign-in").hidden = false;
  byId("sign-in-error").textContent = reason;
  byId("role").textContent = "";
  for (const id of DRAWN) show(id);
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close("no");
  document.title = "Mailrace";
  showState("Not signed in", "");
  byId("token").focus();
}

async function start() {
  byId("sign-in").hidden = true;
  byId("content").hidden = byId("sign-out").hidden = false;
  byId("log-empty").hidden = false;
  nodesReadAt = -Infinity;
  scrollTo(0, 0);
  draw();
  await refresh();
  if (!session.role) return;
  await attempt(() => readHistory());
  updateStream();
  search();
}

function chooseSpan(button) {
  for (const other of document.querySelectorAll("[data-span]")) other.setAttribute("aria-pressed", String(other === button));
  attempt(() => readHistory(button.dataset.span));
}

function connect() {
  connectDialog();
  connectSearch();
  byId("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(byId("token").value.trim());
    byId("token").value = "";
    start();
  });
  byId("sign-out").addEventListener("click", () => signOut());
  byId("pause-log").addEventListener("click", (event) => {
    isLogPaused = !isLogPaused;
    event.target.setAttribute("aria-pressed", String(isLogPaused));
    updateStream();
  });
  for (const button of document.querySelectorAll("[data-span]")) button.addEventListener("click", () => chooseSpan(button));
  document.addEventListener("signed-out", (event) => showSignIn(event.detail));
  document.addEventListener("changed", refresh);
  document.addEventListener("visibilitychange", () => {
    updateStream();
    refresh();
  });
  new IntersectionObserver(([entry]) => {
    isLogOnScreen = entry.isIntersecting;
    updateStream();
  }).observe(byId("log"));
  new ResizeObserver(([entry]) => {
    if (entry.contentRect.width !== chartsWidth) draw();
    chartsWidth = entry.contentRect.width;
  }).observe(byId("charts"));
  setInterval(refresh, OVERVIEW_EVERY_MS);
}

connect();
if (session.token) start();
else showSignIn("");
