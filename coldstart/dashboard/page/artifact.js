// One key: what it was made of, what was left out of it, and where its artifacts lie.
import { ask, bytes, el, facts, number, seconds, table, when } from "./dom.js";

export function artifact({ rest }) {
  const name = rest[0] || "";
  const node = el("div", {}, el("p", { class: "quiet" }, "Loading"));
  return {
    title: "Artifact",
    node,
    async load() {
      const found = await ask(`artifacts/${encodeURIComponent(name)}`);
      const record = found.record;
      node.replaceChildren(
        el("h2", {}, (record && record.program_name) || "Artifact"),
        el("p", { class: "key" }, found.key),
        compareForm(found.key),
        el("h2", {}, "Where it lies"), where(found.artifacts),
        el("h2", {}, "What the key was made of"),
        record ? components(record) : el("p", { class: "quiet" }, "No record is kept of it."),
        ...(record ? leftOut(record, found) : []));
    },
  };
}

function compareForm(left) {
  const input = el("input", { name: "right", placeholder: "another key; empty: the nearest", pattern: "[A-Za-z0-9]+-[0-9a-f]{64}" });
  return el("form", { on: { submit: (event) => { event.preventDefault(); location.hash = `#/explain?${new URLSearchParams({ left, right: input.value.trim() })}`; } } },
    el("label", {}, "Compare with", input), el("button", {}, "Compare"));
}

function where(artifacts) {
  return table("Artifacts of this key", [["digest", "short"], ["tiers", ""], ["bytes", "number"], ["decoded", "number"], ["compile", "number"], ["devices", "number"], ["made", "short"], ["used", "short"], ["by", ""]],
    artifacts.map((one) => [el("span", { class: "key", title: one.digest }, one.digest.slice(0, 12)), one.tiers.join(", "), bytes(one.bytes), bytes(one.raw_bytes),
      seconds(one.compile_seconds), number(one.partitions), when(one.created_unix), when(one.used_unix), one.producer]),
    "No tier has an artifact of it now.");
}

function components(record) {
  return facts([
    ...record.components.map((one) => [one.name, el("span", {}, el("code", {}, one.value || "none"), one.detail ? ` ${one.detail}` : "")]),
    ...Object.entries(record.versions).map(([name, version]) => [`version of ${name}`, version]),
  ]);
}

function leftOut(record, found) {
  const notes = [...new Set(record.notes)];
  return [el("h2", {}, "What was left out of it"),
    found.left_out.length ? el("p", {}, "Rules: ", found.left_out.join(", ")) : el("p", { class: "quiet" }, "Nothing."),
    ...(notes.length ? [el("ul", {}, notes.slice(0, 100).map((note) => el("li", {}, note)))] : []),
    el("p", { class: "quiet" }, `${number(found.remembered)} raw programs are remembered under this key.`)];
}
