// Which view is shown, and the stream that keeps it fresh.
import { ask, el, failed, shown } from "./dom.js";
import { overview } from "./overview.js";
import { misses } from "./misses.js";
import { artifacts } from "./artifacts.js";
import { artifact } from "./artifact.js";
import { explain } from "./explain.js";
import { events } from "./events.js";

const VIEWS = { "": overview, misses, artifacts, artifact, explain, events };
const main = document.getElementById("main");
const connection = document.getElementById("connection");
let state = null; // the latest of the stream
let view = null; // what is shown: {update(state), close()}

function connected(kind, words) {
  if (connection.dataset.state === kind && connection.textContent === words) return;
  connection.dataset.state = kind;
  connection.textContent = words;
}

async function show() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const make = VIEWS[name] || VIEWS[""];
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === `#/${name}`;
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  view?.close?.();
  const mine = (view = make({ rest, query: new URLSearchParams(query || ""), state: () => state }));
  main.replaceChildren(mine.node);
  document.title = `${mine.title ? `${mine.title} – ` : ""}Coldstart`;
  if (state) mine.update?.(state);
  try {
    await mine.load?.();
  } catch (error) {
    if (view === mine) main.replaceChildren(failed(error));
  }
}

function told(next) {
  state = next;
  document.getElementById("about").textContent =
    shown(`Coldstart ${next.version}, mode ${next.mode}, leases kept by: ${next.leases_kept}${next.redacted ? ", names hidden" : ""}`);
  view?.update?.(next);
}

function listen() {
  const stream = new EventSource("api/v1/stream");
  stream.addEventListener("state", (event) => {
    connected("live", "live");
    told(JSON.parse(event.data));
  });
  stream.addEventListener("error", () => {
    connected("lost", "no word from the daemon; trying again");
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 3000); // it was refused
  });
}

addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
ask("overview").then((first) => told({ live: [], ...first })).catch((error) => {
  if (!state) main.replaceChildren(failed(error), el("p", { class: "quiet" }, "The page goes on trying."));
});
show();
listen();
