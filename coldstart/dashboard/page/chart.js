// The hit ratio over time: one line for all, one for each tier's share of the lookups.
import { el, number } from "./dom.js";

const HEIGHT = 230;

export function ratioChart(place, history) {
  const steps = history.steps;
  if (!steps.length) {
    place.replaceChildren(el("p", { class: "quiet" }, "Nothing was looked up in this time."),
      ...(history.trouble ? [el("p", { class: "warn" }, history.trouble)] : []));
    return { close() {} };
  }
  const tiers = [...new Set(steps.flatMap((step) => Object.keys(step.hits)))].sort();
  const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);
  const all = steps.map((step) => sum(step.hits) + sum(step.others));
  const share = (n, at) => (all[at] ? (100 * n) / all[at] : null);
  const data = [
    steps.map((step) => step.unix_seconds),
    steps.map((step, at) => share(sum(step.hits), at)),
    ...tiers.map((tier) => steps.map((step, at) => share(step.hits[tier] || 0, at))),
  ];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const line = (label, name, width) => ({
    label, stroke: () => colour(name), width, points: { show: steps.length < 60, size: 5 },
    value: (_, value) => (value === null || value === undefined ? "–" : `${value.toFixed(1)} %`),
  });
  const axis = { stroke: () => colour("--quiet"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { stroke: () => colour("--line") } };
  place.replaceChildren();
  const plot = new uPlot({
    width: Math.max(240, place.clientWidth - 20), height: HEIGHT,
    scales: { x: { range: [history.since_unix, history.until_unix] }, y: { range: [0, 100] } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toTimeString().slice(0, 5)) }, { ...axis, values: (_, ticks) => ticks.map((tick) => `${tick} %`) }],
    series: [{ label: "time", value: (_, at) => (at === null ? "–" : new Date(at * 1000).toTimeString().slice(0, 5)) }, line("all hits", "--c1", 2.5),
      ...tiers.map((tier, at) => line(tier, ["--c2", "--c3", "--c4", "--c5"][at % 4], 1.5))],
  }, data, place);
  const total = all.reduce((a, b) => a + b, 0), hits = steps.reduce((a, step) => a + sum(step.hits), 0);
  const words = `${number(hits)} hits of ${number(total)} finished lookups of the last ${number((history.until_unix - history.since_unix) / 3600)} hours`;
  place.append(el("p", { class: "quiet" }, words), ...(history.trouble ? [el("p", { class: "warn" }, history.trouble)] : []));
  plot.root.setAttribute("role", "img");
  plot.root.setAttribute("aria-label", `Hit ratio over time: ${words}`);
  const resized = new ResizeObserver(() => plot.setSize({ width: Math.max(240, place.clientWidth - 20), height: HEIGHT }));
  resized.observe(place);
  return { close() { resized.disconnect(); plot.destroy(); } };
}
