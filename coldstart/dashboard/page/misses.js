// In thirty seconds: why isn't it warm?
import { ask, el, key, number, seconds, table, when } from "./dom.js";

export function misses() {
  const programs = el("div", {}, el("p", { class: "quiet" }, "Loading"));
  const recent = el("div", {}, el("p", { class: "quiet" }, "Loading"));
  let seen = "";
  const load = async () => {
    const found = await ask("misses", { limit: 100 });
    programs.replaceChildren(table("Programs that missed", [["program", ""], ["outcome", "short"], ["reason", "short"], ["lookups", "number"], ["compiled for", "number"]],
      found.programs.map((one) => [one.program_name || "(no name)", one.outcome, one.reason, number(one.count), seconds(one.compile_seconds)]),
      "Nothing has missed since the daemon started."));
    recent.replaceChildren(table("Latest", [["when", "short"], ["program", ""], ["reason", "short"], ["compiled for", "number"], ["by", ""], ["key", "short"], ["", "short"]],
      found.recent.map((one) => [when(one.unix_seconds), one.program_name || "(no name)", `${one.outcome} / ${one.reason}`,
        seconds(one.compile_seconds), one.holder, key(one.key),
        one.key ? el("a", { href: `#/explain?left=${one.key}` }, "why?") : ""]),
      "Nothing has missed since the daemon started."));
  };
  return {
    title: "Misses",
    node: el("div", {},
      el("h2", {}, "What missed, the most compile seconds first"), programs,
      el("h2", {}, "The latest lookups that were no hits"), recent),
    load,
    update(state) {
      const now = JSON.stringify(state.lookups);
      if (seen && now !== seen) load().catch(() => {});
      seen = now;
    },
  };
}
