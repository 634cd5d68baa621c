// Elements, and numbers and times as text for people. All text is drawn with text nodes: nothing that comes from mail
// is ever markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An element with attributes, `onNAME` listeners and children. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** An element of a drawing. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export function pill(text, kind) {
  return el("span", { class: `pill ${kind}` }, text);
}

export function button(label, run, attributes = {}) {
  return el("button", { type: "button", onclick: run, ...attributes }, label);
}

export function buttons(...some) {
  return el("span", { class: "buttons" }, ...some.filter(Boolean));
}

/** A table that becomes a list of cards where there is little room. `columns`: heading, cell, whether it is a number. */
export function table(caption, columns, rows, empty) {
  if (rows.length === 0) return el("p", { class: "empty" }, empty);
  const side = (isNumber) => (isNumber ? { class: "number" } : {});
  const head = columns.map(([heading, , isNumber]) => el("th", { scope: "col", ...side(isNumber) }, heading));
  const body = rows.map((row) =>
    el("tr", {}, ...columns.map(([heading, cell, isNumber]) => {
      const content = cell(row);
      const attributes = { "data-label": heading, ...side(isNumber) };
      if (!content) attributes.class = "none";
      return el("td", attributes, el("span", {}, content || ""));
    })));
  return el("div", { class: "scroll" },
    el("table", { class: "rows", "aria-label": caption }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
}

/** Replaces the content if it differs. What is open stays open, and what has the focus keeps it. */
export function show(id, ...children) {
  const place = byId(id);
  const fresh = place.cloneNode(false);
  fresh.append(...children.filter(Boolean));
  const open = [...place.querySelectorAll("details[open]")].map((each) => each.dataset.key);
  for (const each of fresh.querySelectorAll("details")) each.open = open.includes(each.dataset.key);
  if (fresh.isEqualNode(place)) return;
  const nameOf = (node) => node.getAttribute("aria-label") || node.textContent;
  const focused = place.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  place.replaceChildren(...fresh.childNodes);
  if (focused) [...place.querySelectorAll("button, a, summary")].find((each) => nameOf(each) === focused)?.focus();
}

export function title(word) {
  return word[0].toUpperCase() + word.slice(1);
}

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 || value === 0 ? count(value) : value.toFixed(value >= 10 ? 1 : 2);
}

export function millis(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${value.toFixed(value >= 10 ? 0 : 1)} ms`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const [size, unit] = units.find(([size]) => seconds >= size) || [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

export function octets(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 1024 && power < units.length - 1) {
    value /= 1024;
    power += 1;
  }
  return `${power && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[power]}`;
}

/** A time of the API without its date if it is of today. All times of the page are in UTC, as in the log. */
export function clock(text, end = 16) {
  const isToday = text.slice(0, 10) === new Date().toISOString().slice(0, 10);
  return isToday ? text.slice(11, end) : `${text.slice(0, 10)} ${text.slice(11, end)}`;
}

/** The same with seconds, as an element. */
export function time(text) {
  return el("time", { datetime: text }, clock(text, 19));
}
