// Requests to the API with the token of this tab, and what the rest of the page must know of them: who is signed
// in with which role. `signed-out` and `changed` are events of the document.

const TOKEN = "mailrace-token";

export const session = { token: sessionStorage.getItem(TOKEN), role: null, number: 0 };

export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const isOperator = () => session.role === "operate";

/** Keeps a token for this tab; null forgets it. Everything that an older session still reads is dropped. */
export function setToken(token) {
  session.number += 1;
  session.token = token;
  session.role = null;
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

/** The response to a request, whatever its status. */
export function request(path, options = {}) {
  const headers = { Authorization: `Bearer ${session.token}`, ...options.headers };
  return fetch(path, { ...options, headers, cache: "no-store" });
}

/** Asks the API; the answer is JSON. With `act`, its content, it is a POST. */
export async function ask(path, act) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(act) };
  const response = await request(path, act === undefined ? {} : post);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Problem(response.status, answer.detail || answer.title || response.statusText);
  return answer;
}

/** Says that an act may have changed what is shown. */
export function changed() {
  document.dispatchEvent(new Event("changed"));
}

export function signOut(reason = "") {
  document.dispatchEvent(new CustomEvent("signed-out", { detail: reason }));
}
