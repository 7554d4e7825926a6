// Every artifact of every tier. Only the rows in sight are in the page, and only their stretch of the list is fetched.
import { ask, bytes, el, failed, key, number, seconds, when } from "./dom.js";

const ROW = 36, STRETCH = 200, BEYOND = 10;
const COLUMNS = [["program", "name", 28], ["key", "key", 18], ["tiers", null, 12], ["compile", "seconds", 10], ["bytes", "bytes", 10], ["made", "created", 22]];

export function artifacts({ query }) {
  let sort = query.get("sort") || "seconds", search = query.get("search") || "", total = 0, asked = 0;
  let stretches = new Map(); // number -> rows, or a promise of them
  const status = el("p", { class: "quiet", role: "status" }, "Loading");
  const body = el("tbody");
  const head = el("tr");
  const box = el("div", { class: "virtual", tabindex: "0", role: "region", "aria-label": "Artifacts" },
    el("table", { "aria-label": "Artifacts" }, el("colgroup", {}, COLUMNS.map(([, , width]) => el("col", { class: `w${width}` }))), el("thead", {}, head), body));
  const input = el("input", { type: "search", value: search, placeholder: "name, key, producer, target", on: { input: () => later() } });
  let timer = 0;
  const later = () => { clearTimeout(timer); timer = setTimeout(() => { search = input.value; again(); }, 250); };

  function heads() {
    head.replaceChildren(...COLUMNS.map(([name, order]) => el("th", { scope: "col", "aria-sort": order === sort ? (order === "name" || order === "key" ? "ascending" : "descending") : null },
      order ? el("button", { type: "button", on: { click: () => { sort = order; heads(); again(); } } }, name) : name)));
  }

  async function fetchStretch(at) {
    const mine = asked;
    const found = await ask("artifacts", { search, sort, offset: at * STRETCH, limit: STRETCH });
    if (mine !== asked) return;
    total = found.total;
    stretches.set(at, found.artifacts);
    status.textContent = `${number(total)} artifacts${found.cut ? ", and more" : ""}${found.as_of_unix ? "" : " so far, still looking"}` +
      (found.troubles.length ? `; not gone through: ${found.troubles.join("; ")}` : "");
    draw();
    if (!found.as_of_unix) setTimeout(() => { if (mine === asked) again(); }, 1500);
  }

  function rows(at) {
    const number = Math.floor(at / STRETCH), held = stretches.get(number);
    if (held === undefined) {
      const promise = fetchStretch(number).catch((error) => { stretches.delete(number); box.replaceWith(failed(error)); });
      stretches.set(number, promise);
    }
    return Array.isArray(held) ? held[at % STRETCH] : undefined;
  }

  function draw() {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - BEYOND);
    const last = Math.min(total, first + Math.ceil(box.clientHeight / ROW) + 2 * BEYOND);
    const made = [];
    for (let at = first; at < last; at++) made.push(row(rows(at), at));
    const spacer = (count) => { const cell = el("td", { colspan: COLUMNS.length }); cell.style.height = `${count * ROW}px`; return el("tr", { class: "spacer", "aria-hidden": "true" }, cell); };
    body.replaceChildren(spacer(first), ...made, spacer(total - last));
    if (!total) body.replaceChildren(el("tr", {}, el("td", { colspan: COLUMNS.length }, search ? "No artifact is like that." : "No artifact is stored yet.")));
  }

  function row(one, at) {
    const cells = one
      ? [one.program_name || "(no name)", key(one.key), one.tiers.join(", "), seconds(one.compile_seconds), bytes(one.bytes), when(one.created_unix)]
      : ["…", "", "", "", "", ""];
    return el("tr", { "aria-rowindex": at + 2 }, cells.map((cell) => el("td", {}, cell)));
  }

  async function again() {
    asked++;
    stretches = new Map();
    history.replaceState(null, "", `#/artifacts?${new URLSearchParams({ search, sort })}`);
    await fetchStretch(0);
  }

  box.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  heads();
  return {
    title: "Artifacts",
    node: el("div", {}, el("h2", {}, "Artifacts"),
      el("form", { role: "search", on: { submit: (event) => event.preventDefault() } }, el("label", {}, "Search", input)), status, box),
    load: again,
    close() { asked++; clearTimeout(timer); },
  };
}
