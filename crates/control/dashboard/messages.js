// The search for recipients in the queue, a message with what it waits for and what happened to it, and the explanation
// of an address.

import { act, applyTo, verbActs } from "./acts.js";
import { attempt } from "./alerts.js";
import { button, buttons, byId, clock, count, duration, el, octets, plural, show, table, time, title } from "./elements.js";
import { addressLines, messageLines } from "./explanations.js";
import { ask } from "./server.js";

const PAGE = 50;
const LISTS = ["id", "state"];
const VERBS = ["hold", "release", "retry"];
const DESTRUCTIVE_VERBS = ["bounce", "remove"];

/** The conditions of the form, by the names of the API. */
function filterOf(form) {
  const filter = {};
  for (const [name, value] of new FormData(form)) {
    const text = value.trim();
    if (text) filter[name] = LISTS.includes(name) ? text.split(/[\s,]+/) : text;
  }
  return filter;
}

/** Searches for these conditions only. */
export function searchFor(filter) {
  const form = byId("search");
  form.reset();
  for (const [name, value] of Object.entries(filter)) form.elements[name].value = value;
  byId("more-filters").open = Boolean(filter.queue);
  search();
  byId("search").scrollIntoView();
}

export async function search(cursor = null, shown = [], unreadableBefore = 0) {
  const filter = filterOf(byId("search"));
  const query = new URLSearchParams({ limit: PAGE });
  for (const [name, value] of Object.entries(filter)) query.set(name, value);
  if (cursor) query.set("cursor", cursor);
  const page = await attempt(() => ask(`/api/v1/recipients?${query}`));
  if (!page) return;
  // A page can be short before the last one.
  const rows = [...shown, ...page.recipients];
  const unreadable = unreadableBefore + page.unreadable;
  if (rows.length === shown.length && page.next) return search(page.next, rows, unreadable);
  const columns = [
    ["Message", (row) => button(row.id, () => openMessage(row.id), { class: "link id" })],
    ["Sender", (row) => row.sender || "<>"],
    ["Recipient", (row) => row.recipient],
    ["Size", (row) => octets(row.size), true],
    ["Accepted, UTC", (row) => time(row.accepted)],
    ["State", state],
    ["Last error", (row) => row.error],
  ];
  show("results", table("Recipients found", columns, rows, "No recipient in the queue matches."),
    ...(rows.length ? [] : (filter.id ?? []).map((id) => button(`Show what happened to ${id}`, () => openMessage(id)))),
    page.next ? button("Show more", () => search(page.next, rows, unreadable)) : null);
  const leftOut = unreadable ? ` ${title(plural(unreadable, "message"))} left out: unable to read; see the log.` : "";
  byId("found").textContent = `${page.next ? "More than " : ""}${plural(rows.length, "recipient")} found.${leftOut}`;
}

function state(row) {
  return row.until ? `waits until ${clock(row.until)}` : row.state;
}

/** Shows a message: in the queue, or finished and only in the log. */
async function openMessage(id) {
  const path = `/api/v1/messages/${encodeURIComponent(id)}`;
  const past = await ask(`${path}/history`).catch((problem) => ({ problem }));
  const known = await ask(path).catch((problem) => problem);
  const explained = await ask(`${path}/explanation`).catch(() => null);
  if ([401, 403].includes(known.status)) return attempt(() => { throw known; });
  byId("message-title").textContent = `Message ${id}`;
  byId("message-body").replaceChildren(
    ...(known.recipients ? queued(id, known, explained) : [missing(known)]),
    el("h3", {}, "What happened"), history(past));
  if (!byId("message").open) byId("message").showModal();
  return undefined;
}

/** Why a message cannot be shown. */
function missing(problem) {
  const text = problem.status === 404 ? "It is not in the queue: it is finished, or never existed." : `${title(problem.message)}.`;
  return el("p", {}, text);
}

function queued(id, { message, recipients }, explained) {
  const fact = (name, ...value) => [el("dt", {}, name), el("dd", {}, ...value)];
  const columns = [
    ["Recipient", (row) => row.recipient],
    ["State", state],
    ["Attempts", (row) => (row.attempts === null ? "" : count(row.attempts)), true],
    ["Last error", (row) => row.error],
  ];
  const close = () => byId("message").close();
  const has = (state) => recipients.some((row) => row.state === state);
  const able = [recipients.some((row) => row.state !== "held") && "hold", has("held") && "release", has("waiting") && "retry"].filter(Boolean);
  const group = (verbs) => verbActs(verbs, `message ${id}`, { id: [id] }, close);
  return [
    el("dl", {},
      ...fact("Sender", message.sender || "<> (a notice)"),
      ...fact("Client", `${message.client || "local"} ${message.helo}`),
      ...fact("Size", octets(message.size)),
      ...fact("Accepted", time(message.accepted), ` UTC, ${duration(message.age_seconds)} ago`)),
    table("Recipients", columns, recipients, "All its recipients are finished."),
    el("div", { class: "acts" }, buttons(...group(able)), buttons(...group(DESTRUCTIVE_VERBS))),
    el("h3", {}, "What it waits for"),
    el("pre", { tabindex: 0 }, el("code", {}, explained ? messageLines(explained).join("\n") : "")),
  ];
}

/** The events of the log; or why there are none, and how to get them. */
function history({ events, may_lack_earlier: mayLackEarlier, problem }) {
  if (problem) {
    const how = problem.status === 422
      ? el("p", {}, "To see the history of messages here, let the server write its log to a file: ", el("code", {}, '[log] to = "/var/log/mailrace.log"'))
      : null;
    return el("div", { class: "empty" }, el("p", {}, `${title(problem.message)}.`), how);
  }
  const text = ({ fields }) => [fields.to, fields.relay, fields.reply ?? fields.reason].filter(Boolean).join(" ");
  return table("Events", [
    ["Time, UTC", (event) => time(event.time)],
    ["Event", (event) => event.event],
    ["", (event) => text(event)],
  ], mayLackEarlier ? [{ time: "", event: "earlier events may be missing", fields: {} }, ...events] : events, "The log has no events of it.");
}

async function explain(form) {
  const query = new URLSearchParams([...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
  const answer = await attempt(() => ask(`/api/v1/explanation?${query}`));
  if (answer) show("explanation", el("pre", { tabindex: 0 }, el("code", {}, addressLines(answer).join("\n"))));
}

/** Draws the acts on all that is found; readers get none. */
export function showSearchActs() {
  const run = (verb) => async () => {
    if (await applyTo(verb, filterOf(byId("search")))) search();
  };
  const found = "all that matches";
  show("search-acts",
    buttons(...VERBS.map((verb) => act(`${title(verb)} all`, found, run(verb)))),
    buttons(...DESTRUCTIVE_VERBS.map((verb) => act(`${title(verb)} all`, found, run(verb), { class: "danger" }))));
}

export function connectSearch() {
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  byId("explain").addEventListener("submit", (event) => {
    event.preventDefault();
    explain(event.target);
  });
}
