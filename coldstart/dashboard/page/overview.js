// In five seconds: is the fleet warm?
import { ask, bytes, el, failed, key, number, percent, seconds, table } from "./dom.js";
import { ratioChart } from "./chart.js";

const HISTORY_SECONDS = 30000; // ms between two looks at the history

export function overview() {
  const tiles = el("ul", { class: "tiles", "aria-label": "Headline numbers" });
  const live = el("div");
  const reasons = el("div");
  const tiers = el("div");
  const chart = el("div", { class: "chart" }, el("p", { class: "quiet" }, "Loading"));
  const node = el("div", {},
    el("h2", {}, "Now"), tiles,
    el("h2", { id: "ratio" }, "Hit ratio over time, by tier"), chart,
    el("div", { class: "columns" },
      el("section", {}, el("h2", {}, "Compiling now"), live),
      el("section", {}, el("h2", {}, "How lookups ended"), reasons)),
    el("h2", {}, "Tiers"), tiers);
  let drawn = null;
  const draw = async () => {
    try {
      const history = await ask("history", { minutes: 360 });
      drawn?.close();
      drawn = ratioChart(chart, history);
    } catch (error) {
      chart.replaceChildren(failed(error));
    }
  };
  const timer = setInterval(draw, HISTORY_SECONDS);
  return {
    node,
    load: draw,
    close() { clearInterval(timer); drawn?.close(); },
    update(state) {
      tiles.replaceChildren(...headline(state));
      live.replaceChildren(compiles(state.live || []));
      reasons.replaceChildren(endings(state.lookups));
      tiers.replaceChildren(tierTable(state));
    },
  };
}

function tile(name, value, madeOf, kind) {
  return el("li", { class: "tile" }, el("h3", {}, name), el("p", { class: `value ${kind || ""}` }, value),
    el("p", { class: "made-of" }, madeOf));
}

function headline(state) {
  const byTime = state.seconds_ratio, byCount = state.hit_ratio;
  const troubled = state.tiers.filter((tier) => tier.trouble).length + (state.leases_trouble ? 1 : 0);
  return [
    tile("Hit ratio by compile seconds", percent(byTime),
      `${byTime.words} = ${number(byTime.part)} / ${number(byTime.whole)} s`),
    tile("Hit ratio by count", percent(byCount), `${byCount.words} = ${number(byCount.part)} / ${number(byCount.whole)}`),
    tile("Chip-hours saved", number(state.chip_hours_saved.value, 1), state.chip_hours_saved.words),
    tile("Compiles offered", number(state.compiles), `${seconds(state.compile_seconds)} spent, ${number(state.takeovers)} taken over`),
    tile("Compiling now", number(state.leases), `${number(state.open_lookups)} lookups open`),
    tile("Groups in disagreement", number(state.groups_in_disagreement), "programs on which members of a job differed",
      state.groups_in_disagreement ? "bad" : "good"),
    ...fleet(state.fleet),
    tile("In trouble", number(troubled), troubled ? "tiers or leases, see below" : "no tier, no lease board", troubled ? "bad" : "good"),
  ];
}

// What all daemons that share a Redis counted; they say so every few seconds.
function fleet(sums) {
  const ends = Object.entries(sums).filter(([name]) => name.startsWith("lookups."));
  if (!ends.length) return [];
  const whole = ends.reduce((sum, [, count]) => sum + count, 0), part = sums["lookups.hit"] || 0;
  const saved = sums.compile_seconds_saved || 0, spent = sums.compile_seconds || 0;
  return [tile("The fleet's hit ratio", percent({ value: saved + spent ? saved / (saved + spent) : null }),
    `by compile seconds = ${number(saved)} / ${number(saved + spent)} s; by count ${number(part)} / ${number(whole)}, over all daemons that share the Redis`)];
}

function compiles(live) {
  return table("Compiling now", [["program", ""], ["by", ""], ["for", "number"], ["left", "number"]],
    live.map((one) => {
      const left = one.expected_seconds ? one.expected_seconds - one.seconds : null;
      const bar = one.expected_seconds
        ? el("progress", { max: one.expected_seconds, value: Math.min(one.seconds, one.expected_seconds), "aria-label": "progress by its last compile" })
        : null;
      return [el("span", {}, one.program_name || "not named yet", " ", key(one.key), bar), one.holder, seconds(one.seconds),
        left === null ? "not known" : left > 0 ? `about ${seconds(left)}` : "longer than before"];
    }), "Nobody compiles under a lease.");
}

function endings(lookups) {
  const rows = lookups.filter((one) => one.count).sort((a, b) => b.count - a.count);
  return table("How lookups ended", [["outcome", "short"], ["reason", "short"], ["tier", "short"], ["lookups", "number"]],
    rows.map((one) => [one.outcome, one.reason === "ok" ? "" : one.reason, one.tier, number(one.count)]),
    "No lookup has finished yet.");
}

function tierTable(state) {
  const rows = state.tiers.map((tier) => [
    tier.name, tier.url, tier.artifacts < 0 ? "not known" : number(tier.artifacts), bytes(tier.bytes),
    tier.limit_bytes ? bytes(tier.limit_bytes) : "none",
    tier.trouble ? el("span", { class: "bad" }, tier.trouble) : el("span", { class: "good" }, "none known")]);
  const leases = state.leases_trouble ? el("span", { class: "bad" }, state.leases_trouble) : el("span", { class: "good" }, "none known");
  rows.push(["leases", `kept by: ${state.leases_kept}`, "", "", "", leases]);
  return table("Tiers", [["tier", "short"], ["where", ""], ["artifacts", "number"], ["bytes", "number"], ["limit", "number"], ["trouble", ""]],
    rows, "No tier is configured.");
}
