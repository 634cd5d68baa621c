// Charts of the last hour or day, or since the start of the server, with marks at round times. Lines differ in colour and
// in their dashes; pointer and arrow keys show the values of a time.

import { byId, count, el, rate, svg } from "./elements.js";

// The least time that is shown, so that the first lines are not thin as a hair.
const SPANS = {
  hour: { seconds: 3600, least: 600, step: 10, point: "10 seconds" },
  day: { seconds: 86400, least: 7200, step: 240, point: "4 minutes" },
};
const TICKS = [120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600];
const TICKS_MAX = 5;
const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [150, 42, 8, 8, 20];
const CHARTS = [
  ["Mail", "a second", rate, [["accepted", "accepted"], ["delivered", "delivered"], ["deferred", "deferred"], ["failed", "failed"]]],
  ["Queue", "recipients", count, [["queued", "queued"], ["held", "held"]]],
  ["Time until the 250", "ms", rate, [["typical", "commit_p50_ms"], ["99 % within", "commit_p99_ms"], ["sync, 99 % within", "sync_p99_ms"]]],
];

let samples = [];
let span = "hour";
let readAt = -Infinity;

export function spanShown() {
  return span;
}

/** Whether the history has another sample by now. */
export function isBehind() {
  return performance.now() - readAt >= SPANS[span].step * 1000;
}

export function showCharts(newSamples, newSpan = span) {
  [samples, span, readAt] = [newSamples, newSpan, performance.now()];
  draw();
}

export function draw() {
  const place = byId("charts");
  place.dataset.samples = samples.length;
  if (samples.length < 2) {
    place.replaceChildren(el("p", { class: "empty" },
      "The charts begin with the server: the first lines appear in half a minute. Meanwhile send it a message: ",
      el("code", {}, "swaks --server 127.0.0.1 --to postmaster@localhost")));
    return;
  }
  const focused = [...place.querySelectorAll("svg.chart")].indexOf(document.activeElement);
  const width = place.clientWidth < 700 ? place.clientWidth : (place.clientWidth - 2 * 24) / 3;
  place.replaceChildren(...CHARTS.map((chart) => figure(Math.max(width, 240), ...chart)));
  if (focused >= 0) place.querySelectorAll("svg.chart")[focused].focus();
}

function figure(width, name, unit, format, series) {
  const { point, least } = SPANS[span];
  const last = samples[samples.length - 1].time;
  const seconds = Math.min(Math.max(last - samples[0].time, least), SPANS[span].seconds);
  const first = last - seconds;
  const shown = samples.filter((sample) => sample.time >= first);
  const top = nice(Math.max(...shown.flatMap((sample) => series.map(([, member]) => sample[member] ?? 0)), 0));
  const x = (time) => LEFT + ((time - first) / seconds) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value / top) * (HEIGHT - BOTTOM - TOP);
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const values = series.map(() => el("b"));
  const when = el("span", { class: "when" });
  const point_at = (index) => {
    const sample = shown[index ?? shown.length - 1];
    values.forEach((value, place) => { value.textContent = format(sample[series[place][1]]); });
    when.textContent = index === null ? `a point every ${point}` : `${utc(sample.time, true)} UTC`;
    cursor.setAttribute("visibility", index === null ? "hidden" : "visible");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(sample.time));
  };
  point_at(null);
  const label = `${name}, ${unit}, since ${utc(first)} UTC. Latest: `
    + series.map(([title], place) => `${title} ${values[place].textContent}`).join(", ");
  const drawing = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": label, tabindex: 0 },
    ...rows(width, top, y), ...ticks(first, last, x),
    ...series.map(([, member], place) => svg("path", { class: `s${place + 1}`, d: path(shown, member, x, y) })).reverse(), cursor);
  readOut(drawing, shown, when, point_at, (place) => first + ((place * width - LEFT) / (width - LEFT - RIGHT)) * seconds);
  return el("figure", {},
    el("figcaption", {}, el("span", { class: "name" }, el("b", {}, name), `, ${unit}`), when,
      el("span", { class: "keys" }, ...series.map(([title], place) => el("span", {}, key(place), title, " ", values[place])))),
    drawing);
}

/** Shows the values of the time under the pointer, or of the time that the arrow keys have chosen. */
function readOut(drawing, shown, when, point_at, timeAt) {
  let chosen = shown.length - 1;
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const wanted = timeAt((event.clientX - box.left) / box.width);
    chosen = shown.reduce((best, sample, index) => (Math.abs(sample.time - wanted) < Math.abs(shown[best].time - wanted) ? index : best), 0);
    point_at(chosen);
  });
  drawing.addEventListener("pointerleave", () => point_at(null));
  drawing.addEventListener("blur", () => point_at(null));
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -shown.length, End: shown.length }[event.key];
    if (event.key === "Escape") point_at(null);
    if (!step) return;
    event.preventDefault();
    when.setAttribute("aria-live", "polite");
    chosen = Math.min(Math.max(chosen + step, 0), shown.length - 1);
    point_at(chosen);
  });
}

function key(place) {
  return svg("svg", { class: "key", viewBox: "0 0 22 6", "aria-hidden": "true" }, svg("path", { class: `s${place + 1}`, d: "M0 3H22" }));
}

function rows(width, top, y) {
  return [0, 0.5, 1].flatMap((part) => [
    svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(top * part), y2: y(top * part) }),
    svg("text", { x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" }, axis(top * part)),
  ]);
}

/** Marks at round times. */
function ticks(first, last, x) {
  const tick = TICKS.find((each) => (last - first) / each <= TICKS_MAX);
  const times = [];
  for (let at = Math.ceil(first / tick) * tick; at <= last; at += tick) times.push(at);
  return times.flatMap((at) => {
    const anchor = x(at) < LEFT + 14 ? "start" : "middle";
    return [
      svg("line", { class: "grid", x1: x(at), x2: x(at), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }),
      svg("text", { x: x(at), y: HEIGHT - 4, "text-anchor": x(at) > x(last) - 16 ? "end" : anchor }, utc(at)),
    ];
  });
}

/** A line with gaps where there is no value. */
function path(shown, member, x, y) {
  let pen = "M";
  let text = "";
  for (const sample of shown) {
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

function utc(seconds, withSeconds = false) {
  return new Date(seconds * 1000).toISOString().slice(11, withSeconds ? 19 : 16);
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
