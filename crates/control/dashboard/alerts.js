// What needs attention, worst first, each with whom it concerns, where to look and what to do. Numbers in it change all
// the time, so only what begins and what ends is announced to screen readers.

import { buttons, byId, el, show } from "./elements.js";
import { signOut } from "./server.js";

const NOTICE_MS = 8000;
const KINDS = ["bad", "warn"];
const WORDS = { bad: "Problem", warn: "Warning" };

let known = new Map();
let noticeTimer = 0;

/** Forgets what was announced, for the next reader. */
export function clearAlerts() {
  known = new Map();
  show("alerts");
  hideNotice();
}

/** `alerts`: key, kind, name (which stays the same as long as the problem does), title, detail, link, acts. */
export function showAlerts(alerts) {
  const sorted = [...alerts].sort((one, other) => KINDS.indexOf(one.kind) - KINDS.indexOf(other.kind));
  const rows = sorted.map(({ kind, title, detail, link, acts = [] }) =>
    el("li", { class: `alert ${kind}` },
      el("p", { class: "what" }, el("span", { class: "unseen" }, `${WORDS[kind]}: `), el("a", { href: link }, title)),
      detail ? el("p", { class: "detail" }, detail) : null, buttons(...acts)));
  show("alerts", rows.length ? el("ul", { "aria-label": "What needs attention" }, ...rows)
    : el("p", { class: "calm" }, "Nothing needs attention."));
  document.title = rows.length ? `(${rows.length}) Mailrace` : "Mailrace";
  announceChanges(new Map(sorted.map(({ key, kind, name }) => [key, `${WORDS[kind]}: ${name}.`])));
}

function announceChanges(now) {
  const begun = [...now].filter(([key]) => !known.has(key)).map(([, text]) => text);
  const ended = [...known].filter(([key]) => !now.has(key)).map(([, text]) => `No longer: ${text}`);
  if (begun.length || ended.length) byId("announcer").textContent = [...begun, ...ended].join(" ");
  known = now;
}

/** Shows the result of an act for some seconds; a region with the role status reads it out. */
export function notify(text, kind) {
  const notice = byId("notice");
  notice.className = kind;
  notice.textContent = text;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(hideNotice, NOTICE_MS);
}

function hideNotice() {
  byId("notice").textContent = "";
}

/** Runs what may fail, and says why it did. The answer is null then. */
export async function attempt(run) {
  try {
    return await run();
  } catch (problem) {
    if (problem.status === 401) signOut("The token is wrong, has expired, or was revoked.");
    else if (problem.status === 403) notify("Your token may look, and not act.", "warn");
    else notify(problem.status ? problem.message : "The server does not answer.", "bad");
    return null;
  }
}
