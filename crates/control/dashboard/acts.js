// What operators do. Each act says how many recipients it concerns and what will happen, and asks. What destroys mail
// looks different, and more than one message needs a word to be typed.

import { attempt, notify } from "./alerts.js";
import { byId, button, count, plural, title } from "./elements.js";
import { ask, changed, isOperator } from "./server.js";

const CONSEQUENCES = {
  hold: "They stay in the queue until somebody releases them.",
  release: "They are tried now.",
  retry: "They are tried now, instead of at their time.",
  bounce: "Their senders get a notice, and the mail is gone.",
  remove: "The mail is gone, and nobody gets a notice.",
};
const DESTRUCTIVE = ["bounce", "remove"];

/** A button for operators; readers get none. */
export function act(label, about, run, attributes = {}) {
  return isOperator() ? button(label, run, { "aria-label": `${label} ${about}`, ...attributes }) : null;
}

/** The buttons of some verbs for what a filter selects. */
export function verbActs(verbs, about, filter, done = () => {}) {
  return verbs.map((verb) => {
    const attributes = DESTRUCTIVE.includes(verb) ? { class: "danger" } : {};
    return act(title(verb), about, async () => {
      if (await applyTo(verb, filter)) done();
    }, attributes);
  });
}

/** The nodes of a cluster that have not answered, with their errors; empty if all have. */
function failedNodes(answer) {
  const failed = (answer.nodes ?? []).filter((node) => node.error);
  return failed.map((node) => `${node.node} says: ${node.error}`).join("; ");
}

/** Counts, asks, acts. Returns whether it was done. */
export async function applyTo(verb, filter) {
  const isAll = Object.keys(filter).length === 0;
  const what = isAll ? { all: true } : { filter };
  const counted = await attempt(() => ask(`/api/v1/recipients/${verb}`, { ...what, dry_run: true }));
  if (!counted) return false;
  const number = counted.recipients;
  if (number === 0) {
    const why = counted.in_attempt ? `${plural(counted.in_attempt, "recipient")} in an attempt` : "no recipient is selected";
    notify(`Nothing to ${verb}: ${why}.`, "warn");
    return false;
  }
  const isDestructive = DESTRUCTIVE.includes(verb);
  const silent = failedNodes(counted);
  const answer = await dialog({
    question: isAll ? `${title(verb)} all mail in the queue?` : `${title(verb)} this mail?`,
    text: `${isAll ? "The whole queue: " : ""}${plural(number, "recipient")}${silent ? `, and more where ${silent}` : ""}. ${CONSEQUENCES[verb]}`
      + (isDestructive ? " This cannot be undone." : ""),
    yes: isDestructive ? `${title(verb)} ${plural(number, "recipient")}` : title(verb),
    isDangerous: isDestructive,
    word: (isDestructive && (number > 1 || silent)) || isAll ? (isAll ? `${verb} all` : verb) : null,
  });
  if (answer === null) return false;
  const done = await attempt(() => ask(`/api/v1/recipients/${verb}`, what));
  if (done) {
    const failed = failedNodes(done);
    const leftOut = done.in_attempt ? `; ${count(done.in_attempt)} left out: in an attempt` : "";
    const result = `${title(verb)}: ${plural(done.recipients, "recipient")}${leftOut}`;
    notify(failed ? `${result}; but ${failed}.` : `${result}.`, failed || leftOut ? "warn" : "good");
  }
  changed();
  return Boolean(done);
}

/** Pauses, for some time if its reader says so, or resumes. */
export async function pause(target, name, isPaused, recipients) {
  const path = isPaused ? "/api/v1/resume" : "/api/v1/pause";
  const waiting = `${title(plural(recipients, "recipient"))} ${recipients === 1 ? "waits" : "wait"} there.`;
  const span = await dialog(isPaused
    ? { question: `Resume ${name}?`, text: `${waiting} The mail leaves again.`, yes: "Resume" }
    : {
      question: `Pause ${name}?`,
      text: `${waiting} No mail leaves until the time is over, you resume it, or the server starts again.`,
      yes: "Pause",
      label: "For how long: 30m, 2h; empty: until it is resumed",
    });
  if (span === null) return;
  if (await attempt(() => ask(path, span ? { target, for: span } : { target }))) {
    notify(`${title(name)} is ${isPaused ? "resumed" : "paused"}.`, "good");
  }
  changed();
}

/** Asks where the mail of a next hop is to go. */
export async function redirect(nextHop, recipients) {
  const to = await dialog({
    question: `Redirect the mail for ${nextHop}?`,
    text: `It has ${plural(recipients, "recipient")} now. Their mail, and what comes later, goes to another host until you end the redirect, also after a restart.`,
    yes: "Redirect",
    label: "Host or [address], with a port",
    isRequired: true,
  });
  if (to && await attempt(() => ask("/api/v1/redirect", { from: { next_hop: nextHop }, to }))) {
    notify(`Mail for ${nextHop} goes to ${to}.`, "good");
  }
  changed();
}

export async function endRedirect(row, name) {
  const answer = await dialog({ question: "End the redirect?", text: `Mail for ${name} goes there again.`, yes: "End it" });
  if (answer === null) return;
  await attempt(() => ask("/api/v1/redirect/end", { from: row.from }));
  changed();
}

/** Asks; the answer is the text of the field, which is empty without one. null: it is not to be done. */
function dialog({ question, text, yes, label, isRequired = false, isDangerous = false, word = null }) {
  const [place, field, input] = [byId("confirm"), byId("confirm-field"), byId("confirm-input")];
  field.hidden = !label && !word;
  byId("confirm-label").textContent = word ? `Type “${word}” to confirm` : label ?? "";
  input.value = "";
  input.required = isRequired || Boolean(word);
  input.disabled = field.hidden;
  input.oninput = () => input.setCustomValidity(word && input.value.trim() !== word ? `Type ${word}` : "");
  input.oninput();
  byId("confirm-title").textContent = question;
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = yes;
  byId("confirm-yes").className = isDangerous ? "danger primary" : "primary";
  place.returnValue = "";
  const opener = document.activeElement;
  place.showModal();
  // Enter must not destroy anything that was not meant.
  (field.hidden ? byId(isDangerous ? "confirm-no" : "confirm-yes") : input).focus();
  return new Promise((resolve) => {
    place.addEventListener("close", () => {
      focusAgain(opener);
      resolve(place.returnValue === "yes" ? input.value.trim() : null);
    }, { once: true });
  });
}

/** The lists may have been drawn anew behind the dialog. */
function focusAgain(opener) {
  const label = opener.getAttribute("aria-label");
  if (!label || opener.isConnected) return;
  [...document.querySelectorAll("button")].find((each) => each.getAttribute("aria-label") === label)?.focus();
}

export function connectDialog() {
  byId("confirm-form").addEventListener("submit", (event) => {
    event.preventDefault();
    byId("confirm").close("yes");
  });
  for (const each of document.querySelectorAll("[data-close]")) {
    each.addEventListener("click", () => each.closest("dialog").close("no"));
  }
}

