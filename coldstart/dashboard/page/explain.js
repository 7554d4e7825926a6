// Two keys side by side: which components differ, and where.
import { ask, el, key, number, table } from "./dom.js";

export function explain({ query }) {
  const left = query.get("left") || "", right = query.get("right") || "";
  const found = el("div", { "aria-live": "polite" });
  const inputs = ["left", "right"].map((name) => el("input", { name, value: query.get(name) || "", placeholder: name === "left" ? "cs1-…" : "empty: the nearest that was asked for" }));
  const form = el("form", { on: { submit: (event) => {
    event.preventDefault();
    location.hash = `#/explain?${new URLSearchParams({ left: inputs[0].value.trim(), right: inputs[1].value.trim() })}`;
  } } }, el("label", {}, "Key", inputs[0]), el("label", {}, "Compare with", inputs[1]), el("button", {}, "Compare"));
  return {
    title: "Compare",
    node: el("div", {}, el("h2", {}, "Why are two keys not one?"), form, found),
    async load() {
      if (!left) {
        found.replaceChildren(el("p", { class: "quiet" }, "Give a key, for instance that of a miss."));
        return;
      }
      found.replaceChildren(el("p", { class: "quiet", role: "status" }, "Comparing: this takes some seconds"));
      try {
        found.replaceChildren(...account(await ask("explain", { left, right })));
      } catch (error) {
        found.replaceChildren(el("p", { class: "error", role: "alert" }, error.message));
      }
    },
  };
}

function account(said) {
  const sides = [said.left, said.right].filter(Boolean);
  const names = sides.map((side) => (side.record && side.record.program_name) || "(no name)");
  const verdict = sides.length < 2 ? "Only one key is known."
    : said.same ? "They are the same key." : `Two keys: they differ first in the component "${said.first}".`;
  const parts = [el("p", { class: said.same ? "good" : "warn" }, verdict)];
  parts.push(el("p", {}, ...sides.flatMap((side, at) => [at ? " — " : "", names[at], " ", key(side.name)])));
  for (const note of [...said.notes, ...sides.flatMap((side) => side.notes)]) parts.push(el("p", {}, note));
  if (sides.length === 2) parts.push(...components(said));
  if (said.difference) parts.push(...difference(said.difference));
  sides.forEach((side, at) => parts.push(...stripped(side, names[at])));
  return parts;
}

function components(said) {
  const rows = said.components.map((one) => ({
    class: "differs",
    cells: [one.name, both(one.left, one.left_detail), both(one.right, one.right_detail),
      one.parts.map((part) => el("div", {}, part.map(text).join(" · ")))],
  }));
  return [el("h2", {}, "Components that differ"),
    table("Components that differ", [["component", "short"], ["left", ""], ["right", ""], ["in it", ""]], rows, "None: the keys are equal.")];
}

function both(value, detail) {
  return el("span", {}, el("code", {}, value.length === 64 ? `${value.slice(0, 16)}…` : value || "none"), detail ? ` ${detail}` : "");
}

function place(one) {
  const op = one.op >= 0 ? ` op ${one.op}` : "";
  return [one.function ? `@${one.function}` : "", op, " ", one.name, one.kernel ? ` in kernel ${one.kernel}` : ""].join("").trim();
}

function difference(found) {
  const rows = found.shown.map((one) => ({
    class: one.rule ? null : "differs",
    cells: [place(one), one.what, el("code", {}, one.left), el("code", {}, one.right),
      [one.rule ? el("span", { class: "good" }, `left out by ${one.rule}. `) : null, one.why]],
  }));
  return [el("h2", {}, "Where the programs differ"),
    el("p", { class: "quiet" }, `${number(found.count)} differences${found.all ? "" : ", and perhaps more"}; ${number(found.stripped)} of them leave the key`),
    table("Where the programs differ", [["where", ""], ["what", ""], ["left", ""], ["right", ""], ["why", ""]], rows, "Nowhere: the programs say the same.")];
}

function stripped(side, name) {
  const edits = side.programs.flatMap((program) => program.stripped || []);
  if (!edits.length) return [];
  return [el("h2", {}, `Left out of ${name}`),
    table("Left out", [["rule", "short"], ["where", ""], ["what", ""], ["why", ""]],
      edits.slice(0, 50).map((one) => [one.rule, place({ op: -1, name: "", ...one }), one.attribute || one.what || "", one.reason || one.why || ""]), "Nothing.")];
}

function text(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}
