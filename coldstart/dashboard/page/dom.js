// Elements and words. Text only ever becomes text nodes: nothing that a stranger named is taken for markup.

/** An element: `props` are attributes, but `on` (listeners) and `class`; children are nodes or text. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined).map(asNode));
  return node;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(shown(String(child)));
}

// What can't be seen, or turns the direction of what follows, is shown as what it is.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]/g;

/** A stranger's text, fit to be read: no control characters, no end of it in sight after 300. */
export function shown(text, most = 300) {
  const plain = text.replace(UNSEEN, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
  return plain.length > most ? `${plain.slice(0, most)}… (${plain.length} characters)` : plain;
}

/** A table; `columns`: [head, class]; rows: lists of cells (nodes or text), or {cells, class}. */
export function table(caption, columns, rows, empty) {
  if (!rows.length) return el("div", { class: "scroll" }, el("p", { class: "empty quiet" }, empty));
  const head = el("tr", {}, columns.map(([name, kind]) => el("th", { scope: "col", class: kind }, name)));
  const body = rows.map((row) => {
    const { cells, ...props } = Array.isArray(row) ? { cells: row } : row;
    return el("tr", props, cells.map((cell, at) => el("td", { class: columns[at][1] }, cell)));
  });
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

export function facts(pairs) {
  return el("dl", { class: "facts" },
    pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
      .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

export function key(text) {
  return text ? el("a", { href: `#/artifact/${text}`, class: "key", title: text }, `${text.slice(0, 16)}…`) : "";
}

export function failed(error) {
  return el("div", { class: "scroll" }, el("p", { class: "error", role: "alert" }, error.message || String(error)));
}

export function percent(ratio) {
  return ratio.value === null ? "–" : `${(100 * ratio.value).toFixed(1)} %`;
}

export function number(value, digits = 0) {
  return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
}

export function seconds(value) {
  if (value >= 5400) return `${number(value / 3600, 1)} h`;
  if (value >= 90) return `${number(value / 60, 1)} min`;
  return `${number(value, value < 10 ? 2 : 0)} s`;
}

export function bytes(value) {
  if (value < 0) return "not known";
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${number(value / size, 1)} ${unit}`;
  }
  return `${number(value)} B`;
}

export function when(unix) {
  if (!unix) return "";
  const date = new Date(unix * 1000);
  const text = date.toISOString().replace("T", " ").slice(0, 19);
  return el("time", { datetime: date.toISOString(), title: `${text} UTC` }, `${text} UTC`);
}

/** JSON of the API; throws an Error with words for people. */
export async function ask(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined);
  const query = given.length ? `?${new URLSearchParams(given)}` : "";
  let reply;
  try {
    reply = await fetch(`api/v1/${path}${query}`, { headers: { Accept: "application/json" } });
  } catch {
    throw new Error("The daemon doesn't answer. Is it running?");
  }
  if (reply.ok) return reply.json();
  const said = await reply.json().catch(() => ({}));
  throw new Error(said.detail || `The daemon answered ${reply.status}.`);
}
