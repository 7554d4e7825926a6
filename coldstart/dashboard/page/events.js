// What an operator should know of, newest first.
import { el, table, when } from "./dom.js";

export function events() {
  const list = el("div", { class: "events" });
  return {
    title: "Events",
    node: el("div", {}, el("h2", {}, "Events, newest first"), list),
    update(state) {
      list.replaceChildren(table("Events", [["when", "short"], ["what", "short"], ["in words", ""]],
        state.events.map((one) => [when(one.unix_seconds), one.kind, one.message]), "Nothing to tell since the daemon started."));
    },
  };
}
