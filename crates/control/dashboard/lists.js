// The lists of the page, drawn from an overview: next hops, destinations, queues, the machine. And what of them needs
// attention.

import { act, endRedirect, pause, redirect, verbActs } from "./acts.js";
import { buttons, button, clock, count, duration, el, millis, octets, pill, plural, show, table, title } from "./elements.js";
import { obstacleText } from "./explanations.js";
import { searchFor } from "./messages.js";

const CERTIFICATE_WARNING_SECONDS = 14 * 86400;
// More tasks than this for each processor, and everything is slow.
const LOAD_PER_PROCESSOR_MAX = 2;
// Alerts for single next hops; the others are counted.
const HOP_ALERTS_MAX = 3;
const GAUGE_FORMAT = { bytes: octets, percent: (value) => `${value.toFixed(1)} %`, inodes: count, tasks: (value) => value.toFixed(2) };

/** Draws everything of an overview. */
export function showLists({ mail, redirects, load, lanes, certificates }) {
  const hops = mail.next_hops.map(({ status, ...rest }) => ({ ...status, ...rest }));
  const destinations = mail.destinations.map(({ status, ...rest }) => ({ ...status, ...rest }));
  showNextHops(hops, redirects);
  showDestinations(destinations, hops);
  showQueues(mail.queues);
  showLanes(lanes);
  showLoad(load);
  showCertificates(certificates);
}

/** What needs attention in an overview. */
export function alertsOf(overview) {
  const { unready, mail, load, lanes, certificates } = overview;
  const intake = unready ? [{
    key: "unready", kind: "bad", name: "takes no mail", title: `The server takes no mail: ${unready}`, link: "#machine",
  }] : [];
  const hops = mail.next_hops.map(({ status, ...rest }) => ({ ...status, ...rest }));
  return [
    ...intake, ...hopAlerts(hops), ...pausedAlerts(mail.queues, hops), ...loadAlerts(load),
    ...laneAlerts(lanes), ...certificateAlerts(certificates),
  ];
}

function hopAlerts(hops) {
  const dead = hops.filter((hop) => hop.dead_until && hop.recipients > 0);
  const alerts = dead.slice(0, HOP_ALERTS_MAX).map((hop) => ({
    key: `dead ${hop.next_hop}`,
    kind: "bad",
    name: `${hop.next_hop} cannot be reached`,
    title: `${hop.next_hop} cannot be reached`,
    detail: [waitingText(hop), hop.error, `next attempt in ${duration(hop.dead_for_seconds)}`].filter(Boolean).join(" · "),
    link: "#next-hops",
    acts: [act("Redirect", hop.next_hop, () => redirect(hop.next_hop, hop.recipients))],
  }));
  const more = dead.slice(HOP_ALERTS_MAX);
  if (more.length === 0) return alerts;
  const recipients = more.reduce((sum, hop) => sum + hop.recipients, 0);
  return [...alerts, {
    key: "dead, more", kind: "bad", name: "more next hops cannot be reached", link: "#next-hops",
    title: `${count(more.length)} more next hops cannot be reached`, detail: `${plural(recipients, "recipient")} wait`,
  }];
}

function pausedAlerts(queues, hops) {
  const waiting = (queue) => queue.ready + queue.waiting + queue.in_flight + queue.held;
  const queueAlerts = queues.filter((queue) => queue.paused).map((queue) => ({
    key: `paused queue ${queue.queue}`, kind: "warn", name: `the queue ${queue.queue} is paused`,
    title: `The queue ${queue.queue} is ${pauseText(queue)}`, detail: `${plural(waiting(queue), "recipient")} in it`, link: "#queue",
    acts: [act("Resume", queue.queue, () => pause({ queue: queue.queue }, `the queue ${queue.queue}`, true, waiting(queue)))],
  }));
  const hopsPaused = hops.filter((hop) => hop.paused).map((hop) => ({
    key: `paused ${hop.next_hop}`, kind: "warn", name: `${hop.next_hop} is paused`,
    title: `${hop.next_hop} is ${pauseText(hop)}`, detail: waitingText(hop), link: "#next-hops",
    acts: [act("Resume", hop.next_hop, () => pauseHop(hop))],
  }));
  return [...queueAlerts, ...hopsPaused];
}

function loadAlerts(load) {
  return load.limits.filter((limit) => limit.state === "in-force").map((limit) => ({
    key: `limit ${limit.gauge} ${limit.effect}`, kind: "warn", name: `${limit.gauge}: ${limit.effect}`,
    title: title(limit.effect), detail: `${limit.gauge} is at ${gaugeText(limit.unit, limit.value)}`, link: "#machine",
  }));
}

export function isOverloaded(average, processors) {
  return average > processors * LOAD_PER_PROCESSOR_MAX;
}

function laneAlerts(lanes) {
  return lanes.filter((lane) => lane.batches_failed).map((lane) => ({
    key: `lane ${lane.lane}`, kind: "bad", name: `writes failed in lane ${lane.lane} of the spool`,
    title: `${plural(lane.batches_failed, "batch")} could not be written in lane ${lane.lane} of the spool`, link: "#machine",
  }));
}

function certificateAlerts(certificates) {
  const soon = certificates.filter((each) => !each.placeholder && each.expires_in_seconds < CERTIFICATE_WARNING_SECONDS);
  return soon.map((each) => {
    const isOver = each.expires_in_seconds <= 0;
    const what = isOver ? "has expired: clients refuse it" : `expires in ${duration(each.expires_in_seconds)}`;
    return {
      key: `certificate ${each.names[0]} ${isOver}`, kind: isOver ? "bad" : "warn", link: "#machine",
      name: `the certificate for ${each.names[0]} ${isOver ? "has expired" : "expires soon"}`,
      title: `The certificate for ${each.names.join(", ")} ${what}`,
    };
  });
}

function waitingText(hop) {
  if (hop.recipients === 0) return "no recipients wait";
  return `${plural(hop.recipients, "recipient")} ${hop.recipients === 1 ? "waits" : "wait"}, the oldest for ${duration(hop.oldest_age_seconds)}`;
}

/** How long a pause lasts: until a time, or until somebody ends it. */
function pauseText(row) {
  return row.paused_until ? `paused until ${clock(row.paused_until)} UTC` : "paused";
}

function pauseHop(hop) {
  return pause({ next_hop: hop.next_hop }, `the next hop ${hop.next_hop}`, hop.paused, hop.recipients);
}

function hopState(hop) {
  if (hop.paused) return pill(pauseText(hop), "warn");
  if (hop.dead_until) return pill(`unreachable, retry in ${duration(hop.dead_for_seconds)}`, "bad");
  if (hop.failures) return pill(`${plural(hop.failures, "failure")} in a row`, "warn");
  if (hop.recipient_error && hop.recipients) return pill("answers, defers mail", "warn");
  if (hop.error) return pill("works, had errors", "warn");
  return pill(hop.attempts ? "busy" : "well", "good");
}

function showNextHops(hops, redirects) {
  const columns = [
    ["Next hop", (hop) => hop.next_hop],
    ["State", hopState],
    ["Recipients", (hop) => count(hop.recipients), true],
    ["Oldest", (hop) => (hop.recipients ? duration(hop.oldest_age_seconds) : ""), true],
    ["Attempts", (hop) => `${hop.attempts} of ${hop.concurrency}`],
    ["Last error", (hop) => hop.error ?? hop.recipient_error],
    ["", (hop) => buttons(
      act(hop.paused ? "Resume" : "Pause", hop.next_hop, () => pauseHop(hop)),
      act("Redirect", hop.next_hop, () => redirect(hop.next_hop, hop.recipients)))],
  ];
  show("next-hop-list", table("Next hops", columns, hops,
    "No mail has left for another host yet. Next hops appear here with the first message to one."),
    redirects.length ? el("h3", {}, "Redirected mail") : null, redirects.length ? redirectTable(redirects) : null);
}

function redirectTable(redirects) {
  const from = (row) => row.from.next_hop ?? row.from.destination;
  return table("Redirected mail", [
    ["Mail for", (row) => (row.from.next_hop ? "the next hop" : "the destination")],
    ["Name", from],
    ["Goes to", (row) => row.to],
    ["", (row) => act("End", `the redirect of ${from(row)}`, () => endRedirect(row, from(row)))],
  ], redirects, "");
}

/** Why the mail of a destination is there: what blocks it, with the last error; what else blocks it on demand. */
function reason(row, hops) {
  const hop = hops.find((each) => each.next_hop === row.next_hop);
  const error = row.error ?? hop?.error;
  const [first, ...more] = row.obstacles.map((obstacle) => obstacleText(obstacle, hop?.error));
  const held = row.held ? `${count(row.held)} held by an operator` : null;
  const rest = row.waiting ? `${count(row.waiting)} wait for their next attempt` : "it leaves as soon as it is its turn";
  const main = first ?? (row.held === row.recipients ? held : rest);
  return el("span", { class: "reason" },
    el("span", {}, main),
    held && main !== held ? el("span", { class: "soft" }, held) : null,
    error ? el("span", { class: "soft" }, error) : null,
    more.length ? el("details", { "data-key": `${row.destination} ${row.queue}` },
      el("summary", {}, `and ${plural(more.length, "more reason")}`), ...more.map((text) => el("p", {}, text))) : null);
}

function showDestinations(destinations, hops) {
  const about = (row) => ({ destination: row.destination, queue: row.queue });
  const verbs = (row) => [row.held < row.recipients && "hold", row.held > 0 && "release", row.waiting > 0 && "retry"].filter(Boolean);
  const columns = [
    ["Destination", (row) => el("span", {},
      button(row.destination, () => searchFor(about(row)), { class: "link", "aria-label": `${row.destination}: show its mail` }),
      row.queue === "standard" ? null : el("span", { class: "soft" }, ` queue ${row.queue}`))],
    ["Recipients", (row) => count(row.recipients), true],
    ["Oldest", (row) => duration(row.oldest_age_seconds), true],
    ["Why it waits", (row) => reason(row, hops)],
    ["", (row) => buttons(...verbActs(verbs(row), row.destination, about(row)))],
  ];
  show("destination-list", table("Destinations", columns, destinations, "The queue is empty: all mail has left."));
}

function showQueues(queues) {
  const waiting = (row) => row.ready + row.waiting + row.in_flight + row.held;
  const columns = [
    ["Queue", (row) => button(row.queue, () => searchFor({ queue: row.queue }), { class: "link", "aria-label": `${row.queue}: show its mail` })],
    ["State", (row) => (row.paused ? pill(pauseText(row), "warn") : pill("runs", "good"))],
    ["Attempts", (row) => `${count(row.attempts)} of ${count(row.concurrency)}`],
    ["Ready", (row) => count(row.ready), true],
    ["In flight", (row) => count(row.in_flight), true],
    ["Waiting", (row) => count(row.waiting), true],
    ["Held", (row) => count(row.held), true],
    ["", (row) => act(row.paused ? "Resume" : "Pause", row.queue, () => pause({ queue: row.queue }, `the queue ${row.queue}`, row.paused, waiting(row)))],
  ];
  show("queue-list", table("Queues", columns, queues, "No queue is configured."));
  const known = queues.map((row) => el("option", { value: row.queue }));
  show("queue-names", ...known);
}

// Machine

function gaugeText(unit, value) {
  return value === null || value === undefined ? "absent" : GAUGE_FORMAT[unit](value);
}

function showLoad(load) {
  const bound = (limit) => (limit.above !== null ? `above ${gaugeText(limit.unit, limit.above)}` : `below ${gaugeText(limit.unit, limit.below)}`);
  const state = { "in-force": ["in force", "bad"], "not-in-force": ["not in force", "good"], "gauge-absent": ["cannot work: no gauge", "warn"] };
  show("limits", el("h3", {}, "Limits by load"), table("Limits by load", [
    ["Gauge", (limit) => limit.gauge],
    ["Limit", bound],
    ["Effect", (limit) => limit.effect],
    ["State", (limit) => pill(...state[limit.state])],
  ], load.limits, "No limit by load is configured: see [load] in the configuration."));
  const columns = [
    ["Gauge", (gauge) => gauge.gauge],
    ["Value", (gauge) => gaugeText(gauge.unit, gauge.value), true],
    ["Source", (gauge) => gauge.source],
  ];
  // Free space and inodes are of a disk, and named by a folder of it.
  const [disks, others] = [true, false].map((ofDisk) => load.gauges.filter((gauge) => gauge.gauge.startsWith("free ") === ofDisk));
  show("disks", el("h3", {}, "Disks"), table("Disks", columns, disks, "No disk was looked at yet: this takes a few seconds."));
  show("gauges", el("h3", {}, "Gauges"), table("Gauges", columns, others, "No gauge was read yet: this takes a few seconds."));
}

function showLanes(lanes) {
  show("lanes", el("h3", {}, "Lanes of the spool"), table("Lanes", [
    ["Lane", (lane) => String(lane.lane)],
    ["Messages", (lane) => count(lane.messages), true],
    ["Accepted", (lane) => count(lane.accepted), true],
    ["Write and sync, typical", (lane) => millis(lane.sync_p50_ms), true],
    ["99 % within", (lane) => millis(lane.sync_p99_ms), true],
    ["Segments", (lane) => `${count(lane.segments)}, ${count(lane.segments_free)} free`],
    ["State", (lane) => (lane.batches_failed ? pill(`${count(lane.batches_failed)} batches failed`, "bad") : pill("well", "good"))],
  ], lanes, "The spool has no lane."));
}

function certificateState(certificate) {
  const left = certificate.expires_in_seconds;
  if (certificate.placeholder) return pill("not issued yet: a placeholder", "warn");
  if (left <= 0) return pill("has expired", "bad");
  return pill(`expires in ${duration(left)}`, left < CERTIFICATE_WARNING_SECONDS ? "warn" : "good");
}

function showCertificates(certificates) {
  show("certificates", el("h3", {}, "Certificates"), table("Certificates", [
    ["Names", (certificate) => certificate.names.join(", ")],
    ["State", certificateState],
    ["Expires", (certificate) => (certificate.placeholder ? "–" : certificate.expires.slice(0, 10))],
    ["Issuer", (certificate) => certificate.issuer],
  ], certificates, "No listener has TLS: set up a certificate, or let the server obtain one ([tls] and [acme] in the configuration)."));
}

/** Shows the nodes of a cluster that are alive; null: the server belongs to none. */
export function showNodes(nodes) {
  if (!nodes) return show("nodes");
  return show("nodes", el("h3", {}, "Nodes of the cluster"), table("Nodes", [
    ["Node", (node) => `${node.node}${node.here ? " (this one)" : ""}`],
    ["Version", (node) => node.version],
    ["Lanes", (node) => node.lanes.join(", ")],
  ], nodes, "No node is known."));
}
