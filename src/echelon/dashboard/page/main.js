// The page of all runs: what is selected in the list is drawn below it, and both follow what runs write.

import { ask } from "./ask.js";
import { drawCharts, hideCharts } from "./charts.js";
import { keepColours } from "./colours.js";
import { drawDetails } from "./details.js";
import { byId, make } from "./dom.js";
import { drawLegend } from "./legend.js";
import { chosenRows, drawTable } from "./run_table.js";
import { drawStudies } from "./studies.js";
import { keepTheme } from "./theme.js";
import { change, onChange, view } from "./view.js";

const AT_FIRST = 5; // runs that are selected if the reader has chosen none
const PAUSE_MS = 1500; // between two looks at runs that write all the time
const CHOICES = {
  x: [["step", "steps"], ["time", "wall time"], ["seen", "tokens or images"], ["money", "money"]],
  smooth: [["auto", "a twentieth of the run"], ["0", "none"], ["10", "10 steps"], ["100", "100 steps"], ["1000", "1,000 steps"]],
  drag: [["zoom", "zoom"], ["pan", "pan"]],
};
const known = { rows: [], settings: {}, hourly: null, isFirst: true };
let timer = 0;
let isPressed = false;

function options(id, pairs) {
  const place = byId(id);
  const wanted = JSON.stringify(pairs);
  if (place.dataset.pairs !== wanted) {
    place.dataset.pairs = wanted;
    place.replaceChildren(...pairs.map(([value, text]) => make("option", { value }, text)));
  }
  place.value = view[id];
}

function selected() {
  const byKey = new Map(known.rows.map((row) => [row.id, row]));
  return [...new Set([...view.pinned, ...view.run])].map((key) => byKey.get(key)).filter(Boolean);
}

function drawControls() {
  for (const [id, pairs] of Object.entries(CHOICES)) options(id, pairs);
  const keys = [...new Set(Object.values(known.settings).flatMap(Object.keys))].sort();
  options("group", [["", "nothing"], ...keys.map((key) => [key, key])]);
  options("state", [["", "any"], ...[...new Set(known.rows.map((row) => row.state))].sort().map((state) => [state, state])]);
  if (byId("search") !== document.activeElement) byId("search").value = view.search;
  byId("events").checked = view.events === "on";
  byId("whole").hidden = !view.zoom && !view.y.length;
}

function drawList() {
  for (const name of ["runs", "studies"]) {
    byId(`show-${name}`).setAttribute("aria-selected", String(view.show === name));
    byId(`show-${name}`).tabIndex = view.show === name ? 0 : -1;
    byId(`${name}-part`).hidden = view.show !== name;
  }
  if (view.show === "studies") drawStudies(known.rows, known.settings);
  else drawTable(known.rows, known.settings);
}

function draw(changed) {
  const rows = selected();
  const has = (...names) => !changed || changed.some((name) => names.includes(name));
  keepColours(rows.map((row) => row.id));
  drawControls();
  drawList();
  const found = chosenRows(known.rows, known.settings).length;
  const reading = known.rows.filter((row) => row.is_partial).length;
  byId("count").textContent = [`${found === known.rows.length ? found : `${found} of ${known.rows.length}`} runs`, reading ? `reading ${reading}` : ""].filter(Boolean).join(" · ");
  drawLegend(rows);
  byId("charts-part").hidden = byId("details").hidden = rows.length === 0;
  if (!rows.length) return hideCharts();
  if (has("run", "hidden", "pinned", "log", "wide", "x", "smooth", "group", "drag", "events", "zoom", "y")) drawCharts(rows, known.hourly);
  if (has("run", "pinned", "tab")) drawDetails(rows);
}

async function load() {
  try {
    const found = await ask("api/runs");
    await released();
    const before = JSON.stringify(selected());
    Object.assign(known, found);
    complain("");
    if (known.isFirst && known.rows.length) {
      known.isFirst = false;
      if (!view.run.length) return change({ run: chosenRows(known.rows, known.settings).slice(0, AT_FIRST).map((row) => row.id) });
      return draw();
    }
    draw(before === JSON.stringify(selected()) ? ["rows"] : undefined);
  } catch (error) {
    complain(`The server cannot be reached: ${error.message}`);
  }
}

// A click whose button is drawn anew between press and release is lost, and so is a drag: what is new waits for the pointer.
async function released() {
  while (isPressed) await new Promise((done) => { setTimeout(done, 50); });
}

function complain(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
}

function listen() {
  const events = new EventSource("events");
  events.onmessage = () => {
    if (timer) return;
    timer = setTimeout(() => { timer = 0; load(); }, known.isFirst ? 0 : PAUSE_MS);
  };
  events.onerror = () => complain("No connection to echelon; this page shows what it last knew.");
}

for (const id of ["x", "smooth", "group", "drag", "state"]) byId(id).addEventListener("change", (event) => change({ [id]: event.target.value, ...(id === "x" ? { zoom: "" } : {}) }));
byId("search").addEventListener("input", (event) => change({ search: event.target.value }));
byId("events").addEventListener("change", (event) => change({ events: event.target.checked ? "on" : "off" }));
for (const [name, other] of [["runs", "studies"], ["studies", "runs"]]) {
  byId(`show-${name}`).addEventListener("click", () => change({ show: name }));
  byId(`show-${name}`).addEventListener("keydown", (event) => {
    if (!["ArrowRight", "ArrowLeft"].includes(event.key)) return;
    change({ show: other });
    byId(`show-${other}`).focus();
  });
}
byId("by").addEventListener("change", (event) => change({ by: event.target.value }));
byId("none").addEventListener("click", () => change({ run: [] }));
byId("whole").addEventListener("click", () => change({ zoom: "", y: [] }));
// The menu of columns closes as others do.
document.addEventListener("click", (event) => { if (!byId("columns").contains(event.target) && event.target.isConnected) byId("columns").open = false; });
byId("columns").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  byId("columns").open = false;
  byId("columns").querySelector("summary").focus();
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches?.("input[type=text], textarea, select");
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    byId("search").focus();
  } else if (event.key === "Escape" && event.target === byId("search")) {
    byId("search").value = "";
    change({ search: "" });
  }
});
addEventListener("pointerdown", () => { isPressed = true; }, true);
addEventListener("pointermove", (event) => { isPressed &&= event.buttons > 0; }, true); // let go outside of the window
for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => { setTimeout(() => { isPressed = false; }); }, true);
keepTheme(byId("theme"));
const redraw = () => draw();
byId("theme").addEventListener("click", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
onChange(draw);
if (!window.Plotly) addEventListener("DOMContentLoaded", redraw);
load().then(listen);
