// The list of runs: sorted, filtered, and selected from.

import { colourOf } from "./colours.js";
import { byId, make } from "./dom.js";
import { ago, count, duration, trim, whole } from "./format.js";
import { change, toggle, view } from "./view.js";

export const metricOf = (row) => Object.keys(row.metrics)[0];
export const testOf = (row) => row.test[metricOf(row)];
export const bestOf = (row) => row.validation[metricOf(row)]?.value;
const pending = (row, text) => (row.is_partial ? "…" : text);
const moneyOf = (row) => row.cost ?? row.host_hours;

const COLUMNS = [
  { key: "name", title: "Run", value: (row) => row.name },
  { key: "state", title: "State", value: (row) => row.state, show: showState },
  { key: "step", title: "Step", value: (row) => row.step, show: (row) => whole(row.step), number: true, small: true },
  { key: "test", title: "Test", value: testOf, show: (row) => score(row, testOf(row)), number: true },
  { key: "validation", title: "Best validation", value: bestOf, show: (row) => pending(row, score(row, bestOf(row))), number: true },
  { key: "loss", title: "Loss", value: (row) => row.loss, show: (row) => pending(row, trim(row.loss)), number: true },
  { key: "speed", title: "Speed", value: (row) => row.speed, show: showSpeed, number: true, small: true },
  { key: "cost", title: "Cost", value: moneyOf, show: showCost, number: true, small: true },
  { key: "hosts", title: "Hosts", value: (row) => row.hosts, show: (row) => pending(row, whole(row.hosts)), number: true, small: true },
  { key: "seconds", title: "Duration", value: (row) => row.seconds, show: (row) => pending(row, duration(row.seconds)), number: true, small: true },
  { key: "last_change", title: "Changed", value: (row) => row.last_change, show: (row) => ago(row.last_change), number: true, small: true },
];

function score(row, value) {
  return value === undefined || value === null ? "" : make("span", {}, value.toFixed(2), " ", make("span", { class: "of" }, row.metrics[metricOf(row)]));
}

function showState(row) {
  const share = row.steps ? Math.min(1, row.step / row.steps) : 0;
  const gauge = row.state === "training"
    ? make("span", { class: "gauge", role: "progressbar", "aria-valuenow": Math.round(100 * share), "aria-label": "steps done" },
      make("i", { "--share": `${100 * share}%` })) : null;
  return make("span", { class: `state-${row.state.split(" ")[0].replace(/[^a-z]/g, "")}`, title: row.problem }, row.state, gauge);
}

function showSpeed(row) {
  return pending(row, row.speed ? make("span", {}, count(row.speed), " ", make("span", { class: "of" }, `${row.unit}/s`)) : "");
}

function showCost(row) {
  if (row.cost !== null) return pending(row, `$${row.cost.toFixed(2)}`);
  return pending(row, row.host_hours === null ? "" : `${trim(row.host_hours)} host h`);
}

export function chosenRows(rows, settings) {
  const words = view.search.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = (row) => [row.name, row.id, row.state, row.task, row.note, ...row.tags,
    ...Object.entries(settings[row.id] || {}).map(([key, value]) => `${key}=${value}`)].join(" ").toLowerCase();
  const column = COLUMNS.find(({ key }) => key === view.sort.replace("-", "")) || COLUMNS[0];
  const sign = view.sort.startsWith("-") ? -1 : 1;
  return rows
    .filter((row) => view.pinned.includes(row.id)
      || ((!view.state || row.state === view.state) && words.every((word) => texts(row).includes(word))))
    .sort((a, b) => view.pinned.includes(b.id) - view.pinned.includes(a.id) || sign * compare(column.value(a), column.value(b), sign));
}

// Runs without a value come last, whichever way the others are sorted.
function compare(a, b, sign) {
  const [none, other] = [a === null || a === undefined, b === null || b === undefined];
  if (none || other) return sign * (none - other);
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
}

export function drawTable(rows, settings) {
  const table = byId("runs");
  const focused = document.activeElement?.closest?.("#runs [data-key]")?.dataset.key;
  const head = COLUMNS.map((column) => {
    const is = view.sort.replace("-", "") === column.key;
    const down = view.sort.startsWith("-");
    return make("th", { scope: "col", class: classOf(column), "aria-sort": is ? (down ? "descending" : "ascending") : null },
      make("button", { type: "button", "data-key": `sort ${column.key}`, onclick: () => change({ sort: (is ? !down : column.number) ? `-${column.key}` : column.key }) },
        column.title, is ? (down ? " ↓" : " ↑") : ""));
  });
  table.tHead.replaceChildren(make("tr", {}, make("th", { class: "pick" }, make("span", { class: "sr" }, "Selected")), ...head));
  table.tBodies[0].replaceChildren(...chosenRows(rows, settings).map(drawRow));
  if (focused) table.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

const classOf = (column) => [column.number ? "number" : "", column.small ? "small-out" : ""].join(" ").trim();

function drawRow(row) {
  const isChosen = view.run.includes(row.id);
  const pick = make("td", { class: "pick" },
    make("input", { type: "checkbox", checked: isChosen, "data-key": row.id, "aria-label": `show ${row.name}`, onchange: () => toggle("run", row.id), onkeydown: walk }),
    make("span", { class: "swatch", "--colour": isChosen ? colourOf(row.id) : "transparent" }));
  const name = make("th", { scope: "row", title: row.id },
    make("button", { type: "button", tabIndex: -1, title: `${row.id}\nshow this run alone`, onclick: () => change({ run: [row.id] }) }, row.name),
    ...row.tags.map((tag) => make("span", { class: "tag" }, tag)), row.note ? make("span", { class: "of", title: row.note }, "✎") : null);
  return make("tr", {}, pick, name, ...COLUMNS.slice(1).map((column) => make("td", { class: classOf(column) }, column.show(row))));
}

function walk(event) {
  const boxes = [...byId("runs").querySelectorAll("tbody input")];
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) boxes[boxes.indexOf(event.target) + step]?.focus();
  else if (event.key === "Enter") change({ run: [event.target.dataset.key] });
  else return;
  event.preventDefault();
}
