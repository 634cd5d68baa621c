// Explanations as sentences: how mail for an address is routed, what a message waits for, and what holds a destination.
// The server answers with values of known kinds; a kind that this page does not know is shown by its name.

import { clock, duration, octets, plural } from "./elements.js";

const OBSTACLES = {
  stopped: () => "deliveries are stopped because of high load",
  unrecorded: (it) => `${plural(it.attempts, "attempt")} ended but not recorded (limit ${it.attempts_max}): the disk is slow`,
  "queue-paused": (it) => `the queue ${it.queue} is paused, or its concurrency is 0`,
  "next-hop-paused": (it) => `the next hop is paused ${pauseEnd(it.until)}`,
  "destination-paused": (it) => `the destination is paused ${pauseEnd(it.until)}`,
  "no-route": () => "the route is not resolved yet",
  "next-hop-unreachable": (it, error) => `the next hop is unreachable${beside(it, error)}; next attempt ${when(it.next_attempt)}`,
  "next-hop-interrupts": (it, error) =>
    `the next hop interrupted ${plural(it.messages, "message")} in a row${beside(it, error)}; trying one message at a time, the next ${when(it.next_attempt)}`,
  "rate-limit": (it) => `the rate limit of the next hop is reached; next message ${when(it.next_attempt)}`,
  "next-hop-full": (it) => `the next hop has ${plural(it.attempts, "attempt")}, its current limit (${it.attempts_max})`,
  "slots-elsewhere": (it) =>
    `the next hop has ${plural(it.attempts, "attempt")}, all that other nodes leave to this one now (${it.attempts_max} of ${it.cluster_max})`,
  "queue-full": (it) => `the queue ${it.queue} has ${plural(it.attempts, "attempt")}, its limit (${it.attempts_max})`,
  adopted: (it) =>
    `the next hop failed or was slow ${duration(it.trouble_age_seconds)} ago and is served by the queue ${it.queue}, with fewer attempts, until it has worked well for ${duration(it.release_after_seconds)}`,
};

const DIRECTORY = {
  mailbox: () => "a local mailbox",
  alias: (it) => `local; expands to ${it.addresses.join(", ")}`,
  remote: () => "remote: not one of our domains",
  "unknown-user": () => "unknown user in one of our domains",
  "too-many-steps": () => "too many alias steps, possibly an alias loop",
  "too-many-addresses": () => "it expands to too many addresses",
  unavailable: (it) => `cannot be looked up now: ${it.reason}`,
  "return-path": () => "the sender of forwarded mail (SRS), only for bounces",
  "forged-return-path": () => "not an SRS address of this host",
  "expired-return-path": () => "an SRS address that has expired",
};

const SENDERS = {
  rewritten: (it) => `an SRS address in ${it.domain}, if a stranger sends it`,
  "too-long": (it) => `${it.sender}, which is too long for SRS`,
  unknown: (it) => `unknown: ${it.reason}`,
};

const QUEUE_RULES = {
  "local-mailbox": () => "because the mailbox is local",
  sender: (it) => `by sender ${it.pattern}`,
  "sender-table": (it) => `by sender table '${it.table}'`,
  domain: (it) => `by domain ${it.pattern}`,
  default: () => "because no rule matches",
};

const TARGETS = { mailbox: "local mailbox", program: "a program", discard: "none, mail is discarded" };

const ROUTES = {
  local: (it) => [`route: ${TARGETS[it.target] ?? it.target}, transport ${it.transport}`],
  hosts: (it) => [
    `route: to ${it.next_hop}, transport ${it.transport}; valid for ${duration(it.valid_for_seconds)}`,
    ...it.hosts.map((host) => `  ${host.rank}. ${host.name}: ${host.endpoints.join(", ")}${host.tls ? `; TLS: ${host.tls}` : ""}`),
    ...it.tls_notes.map((note) => `tls: ${note}`),
  ],
  deferred: (it) => [`route: unknown now, mail waits: ${it.reply}`],
  failed: (it) => [`route: none, mail fails: ${it.reply}`],
  unknown: (it) => [`route: unknown: ${it.reason}`],
};

const STAGES = {
  "no-rules": "no rules",
  "needs-helo": "not checked: it needs a HELO name",
  "needs-message": "not checked: it depends on the verdicts on a message",
  accepted: "accepted; later stages are skipped",
  decided: "decided here",
  continues: "continues",
};

const CONDITIONS = {
  holds: () => "yes",
  listed: (it) => `yes, ${it.name}`,
  value: (it) => `yes, "${it.value}"${it.is_known ? "" : ", which is not a known action"}`,
  fails: () => "no",
  "table-unavailable": (it) => `unknown: ${it.reason}`,
  "list-unavailable": (it) => `no, the list is unavailable: ${it.reason}`,
  "not-asked": () => "not asked",
};

const VERDICTS = {
  "no-match": () => "does not match",
  accept: () => "accept",
  "accept-in-list": () => "accept, for the rules of its list only",
  hold: () => "hold",
  discard: () => "discard",
  "discard-in-list": () => "discard, for the rules of its list only",
  prepend: (it) => `prepend ${it.field}`,
  copy: (it) => `copy to ${it.address}`,
  redirect: (it) => `redirect to ${it.address}`,
  edit: () => "change the message",
  log: (it) => `log "${it.text}"`,
  "enter-class": (it) => `the rules of class "${it.class}"`,
  refuse: (it) => `refuse: ${it.reply}`,
  defer: (it) => `defer: ${it.reply}`,
};

const STATES = {
  ready: "ready, waiting for its turn",
  "in-flight": "in flight",
  held: "held by an operator",
  waiting: "waiting for its next attempt",
  delivered: "delivered",
  failed: "failed, or removed by an operator",
  "set-aside": "set aside: the message is damaged",
  withdrawn: "withdrawn: the client was told that it was not accepted",
  moving: "entering or leaving the queue",
};

/** The sentence for a value with a kind. */
function worded(sentences, value, ...more) {
  return sentences[value.kind]?.(value, ...more) ?? value.kind;
}

function when(due) {
  return due.in_ms === 0 ? "now" : `in ${duration(due.in_ms / 1000)}`;
}

function pauseEnd(until) {
  return until ? `and resumes at ${clock(until.at)} UTC, ${when(until)}` : "until it is resumed";
}

/** The error of an obstacle, unless it stands beside the sentence. */
function beside(obstacle, error) {
  return obstacle.error === error ? "" : ` (${obstacle.error})`;
}

/** What mail waits for. `error`: what is shown beside it. */
export function obstacleText(obstacle, error) {
  return worded(OBSTACLES, obstacle, error);
}

function obstacleLines(obstacles) {
  if (obstacles.length === 0) return ["  nothing holds this destination: mail leaves when it is due"];
  return obstacles.map((obstacle) => `  waits: ${obstacleText(obstacle)}`);
}

/** How mail for an address is routed, a line each. */
export function addressLines({ address, normalized, access, directory, forwarded_sender: sender, recipients, omitted }) {
  return [
    ...(access ? accessLines(access) : []),
    ...(address === normalized ? [] : [`${address}: the postmaster of this host, ${normalized}`]),
    `${normalized}: ${worded(DIRECTORY, directory)}`,
    ...(sender ? [`  sender in other domains: ${worded(SENDERS, sender)}`] : []),
    ...recipients.flatMap(routeLines),
    ...(omitted ? [`and ${omitted} more addresses`] : []),
  ];
}

function accessLines({ stages, relaying }) {
  const condition = (it) => `${it.condition}: ${worded(CONDITIONS, it.result)}`;
  const rule = (it) => `"${it.rule}" (${it.conditions.map(condition).join("; ") || "always"}): ${worded(VERDICTS, it.verdict)}`;
  const relay = relaying && (relaying.refusal
    ? `relay: a client at ${relaying.client} may not relay without login: ${relaying.refusal} at RCPT`
    : `relay: a client at ${relaying.client} may relay`);
  return [
    ...(stages.length ? [] : ["access: no rules"]),
    ...stages.flatMap(({ stage, rules, result }) => [...rules.map((it) => `${stage}: ${rule(it)}`), `${stage}: ${STAGES[result] ?? result}`]),
    ...(relay ? [relay] : []),
  ];
}

function rateText(rate) {
  return rate ? `${plural(rate.messages, "message")} every ${duration(rate.per_seconds)}` : null;
}

function routeLines(row) {
  const rules = [["client", row.queue.client_rules], ["header", row.queue.header_rules]].filter(([, number]) => number);
  const unless = rules.map(([kind, number]) => `; unless a ${kind} rule matches (${plural(number, "rule")})`).join("");
  const source = { directory: "from the directory", route: "by a route" }[row.destination_source];
  const { limits, next_hop_limits: own, quota, next_hop_load: load } = row;
  const each = limits?.recipients_per_attempt ? `, ${plural(limits.recipients_per_attempt, "recipient")} each` : "";
  const ownLimits = own && [
    own.connections && plural(own.connections, "connection"), rateText(own.rate),
    own.messages_per_connection && `${plural(own.messages_per_connection, "message")} a connection`,
    own.recipients_per_message && `${plural(own.recipients_per_message, "recipient")} a message`,
  ].filter(Boolean).join(", ");
  const hasNextHop = ["local", "hosts"].includes(row.route.kind);
  return [
    row.address,
    `  queue: ${row.queue.name}, ${worded(QUEUE_RULES, row.queue.rule)}${unless}`,
    ...(source ? [`  destination: ${row.destination}, ${source}`] : []),
    ...[worded(ROUTES, row.route)].flat().map((line) => `  ${line}`),
    ...(limits ? [`  limits: at most ${plural(limits.attempts, "attempt")} concurrently${each}; ${rateText(limits.rate) ?? "no rate"}`] : []),
    ...(ownLimits ? [`  limits for this next hop: ${ownLimits}`] : []),
    ...(quota ? [`  quota: ${quotaText(quota)}`] : []),
    ...(load ? [`  next hop now: ${loadText(load)}`] : []),
    ...(hasNextHop || row.obstacles.length ? obstacleLines(row.obstacles) : []),
  ];
}

function quotaText(quota) {
  if (quota.kind !== "known") return `unknown now: ${quota.reason}`;
  const limits = [quota.bytes_max && octets(quota.bytes_max), quota.messages_max && plural(quota.messages_max, "message")];
  return `${limits.filter(Boolean).join(" and ")}; the mailbox holds ${octets(quota.bytes)} in ${plural(quota.messages, "message")}`;
}

function loadText({ attempts, attempts_max: max, failures }) {
  const since = failures ? `, ${plural(failures, "failure")} since it last answered` : "";
  return `${plural(attempts, "attempt")} in progress, limit ${max} now${since}`;
}

/** What a message waits for, a line each. */
export function messageLines({ recipients, recipient_count: all, destinations }) {
  const more = all - recipients.length;
  return [
    ...recipients.map((row) => `<${row.recipient}>: ${recipientText(row)}`),
    ...(more > 0 ? [`and ${plural(more, "more recipient")}`] : []),
    ...destinations.flatMap((row) => [
      `destination ${row.destination}, queue ${row.queue}${row.next_hop ? `, next hop ${row.next_hop}` : ""}: ${plural(row.recipients, "recipient")}`,
      ...obstacleLines(row.obstacles),
    ]),
  ];
}

function recipientText(row) {
  const state = row.state === "waiting" && row.attempts === 0 ? "waiting for its first attempt" : STATES[row.state] ?? row.state;
  const due = row.due ? ` ${when(row.due)}` : "";
  const attempts = row.attempts === null ? "" : `; ${plural(row.attempts, "attempt")} so far`;
  const error = row.error ? `; last error: ${row.error}` : "";
  return `${state}${due}${attempts}${error}${row.is_forwarded ? "; forwarded, with a rewritten sender" : ""}`;
}
