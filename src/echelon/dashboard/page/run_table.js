// The list of runs: sorted, filtered, and selected from.

import { colourOf } from "./colours.js";
import { byId, make } from "./dom.js";
import { ago, count, duration, trim, whole } from "./format.js";
import { change, toggle, view } from "./view.js";

const MOST_SELECTED = 50; // that the server draws in a chart
const MOST_COLUMNS = 4; // of settings that are shown without being asked for
const NOT_COMPARED = new Set(["name", "version"]);

export const metricOf = (row) => Object.keys(row.metrics)[0];
export const testOf = (row) => row.test[metricOf(row)];
export const bestOf = (row) => row.validation[metricOf(row)]?.value;
const pending = (row, text) => (row.is_partial ? "…" : text);
const moneyOf = (row) => row.cost ?? row.host_hours;

const COLUMNS = [
  { key: "name", title: "Run", value: (row) => row.name },
  { key: "state", title: "State", value: (row) => row.state, show: showState },
  { key: "step", title: "Step", value: (row) => row.step, show: (row) => whole(row.step), number: true, small: true },
  { key: "test", title: "Test score", hint: "on the test set, after training", value: testOf, show: (row) => score(row, testOf(row)), number: true },
  { key: "validation", title: "Best validation", hint: "the best score so far on the validation set", value: bestOf, show: (row) => pending(row, score(row, bestOf(row))), number: true },
  { key: "loss", title: "Loss", hint: "in training, mean of the last twentieth of the steps", value: (row) => row.loss, show: (row) => pending(row, trim(row.loss)), number: true, lowFirst: true },
  { key: "speed", title: "Speed", value: (row) => row.speed, show: showSpeed, number: true, small: true },
  { key: "cost", title: "Cost", hint: "of all hosts, from start to end", value: moneyOf, show: showCost, number: true, small: true },
  { key: "hosts", title: "Hosts", value: (row) => row.hosts, show: (row) => pending(row, whole(row.hosts)), number: true, small: true },
  { key: "seconds", title: "Duration", hint: "without pauses between launches", value: (row) => row.seconds, show: (row) => pending(row, duration(row.seconds)), number: true, small: true },
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
  const conditions = view.search.toLowerCase().split(/\s+/).filter(Boolean).map((word) => conditionOf(word, settings));
  const texts = (row) => [row.name, row.id, row.state, row.task, row.note, ...row.tags,
    ...Object.entries(settings[row.id] || {}).map(([key, value]) => `${key}=${value}`)].join(" ").toLowerCase();
  const column = COLUMNS.find(({ key }) => key === view.sort.replace("-", "")) || settingColumn(view.sort.replace("-", ""), settings);
  const sign = view.sort.startsWith("-") ? -1 : 1;
  return rows
    .filter((row) => {
      if (view.pinned.includes(row.id)) return true;
      const text = texts(row);
      return (!view.state || row.state === view.state) && conditions.every((holds) => holds(row, text));
    })
    .sort((a, b) => view.pinned.includes(b.id) - view.pinned.includes(a.id) || sign * compare(column.value(a), column.value(b), sign));
}

// What a word of the search asks of a row: `learning_rate>0.1` and `loss<=2` compare numbers, others are looked for.
function conditionOf(word, settings) {
  const [, key, sign, given] = word.match(/^([\w.]+)(<=|>=|<|>)([-+.\de]*)$/) || [];
  if (!key) return (row, text) => text.includes(word);
  const limit = Number.parseFloat(given);
  if (Number.isNaN(limit)) return () => true; // it is still being typed
  const holds = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b }[sign];
  return (row) => {
    const column = COLUMNS.find((each) => each.number && each.key === key);
    const own = Object.entries(settings[row.id] || {}).filter(([name]) => name === key || name.endsWith(`.${key}`));
    return [column?.value(row), ...own.map(([, value]) => value)].some((value) => isNumber(value) && holds(Number(value), limit));
  };
}

const isNumber = (value) => value !== null && value !== undefined && value !== "" && Number.isFinite(Number(value));

// Runs without a value come last, whichever way the others are sorted.
function compare(a, b, sign) {
  const [none, other] = [a === null || a === undefined, b === null || b === undefined];
  if (none || other) return sign * (none - other);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

// The settings in which these rows differ.
export function variedSettings(rows, settings) {
  const own = rows.map((row) => settings[row.id] || {});
  const keys = [...new Set(own.flatMap(Object.keys))].sort();
  return keys.filter((key) => !NOT_COMPARED.has(key) && new Set(own.map((each) => each[key])).size > 1);
}

// Columns that the reader has added; if there are none, what few settings differ in the rows that are listed.
function settingColumns(rows, settings) {
  const varied = view.column.length ? [] : variedSettings(rows, settings);
  const keys = view.column.length ? view.column : varied.length <= MOST_COLUMNS ? varied : [];
  return keys.filter((key) => key !== "none").map((key) => settingColumn(key, settings));
}

function settingColumn(key, settings) {
  const read = (row) => settings[row.id]?.[key];
  const value = (row) => (isNumber(read(row)) ? Number(read(row)) : read(row));
  return { key, title: key.split(".").at(-1), hint: key, value, show: (row) => read(row) ?? "", number: true };
}

export function drawTable(rows, settings) {
  const table = byId("runs");
  const focused = document.activeElement?.closest?.("#runs [data-key]")?.dataset.key;
  const chosen = chosenRows(rows, settings);
  const added = settingColumns(chosen, settings);
  const columns = COLUMNS.flatMap((column) => (column.key === "speed" ? [...added, column] : [column]));
  const head = columns.map(drawHeading);
  table.tHead.replaceChildren(make("tr", {}, make("th", { class: "pick" }, drawPickAll(chosen)), ...head));
  table.tBodies[0].replaceChildren(...chosen.map((row) => drawRow(row, columns)));
  drawColumnChoice(variedSettings(rows, settings), added.map(({ key }) => key));
  if (focused) table.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function drawHeading(column) {
  const is = view.sort.replace("-", "") === column.key;
  const down = view.sort.startsWith("-");
  return make("th", { scope: "col", class: classOf(column), "aria-sort": is ? (down ? "descending" : "ascending") : null },
    make("button", { type: "button", "data-key": `sort ${column.key}`, title: column.hint, onclick: () => change({ sort: (is ? !down : column.number && !column.lowFirst) ? `-${column.key}` : column.key }) },
      column.title, is ? (down ? " ↓" : " ↑") : ""));
}

// One box for all runs that are listed.
function drawPickAll(chosen) {
  const listed = chosen.map((row) => row.id);
  const isAll = listed.length > 0 && listed.every((key) => view.run.includes(key));
  const others = view.run.filter((key) => !listed.includes(key));
  const box = make("input", {
    type: "checkbox", checked: isAll, "data-key": "all", "aria-label": "show all runs in this list", title: "all runs in this list",
    onchange: () => change({ run: isAll ? others : [...others, ...listed].slice(0, MOST_SELECTED) }),
  });
  box.indeterminate = !isAll && listed.some((key) => view.run.includes(key));
  return box;
}

function drawColumnChoice(keys, shown) {
  const menu = byId("columns");
  const focused = menu.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  menu.hidden = keys.length === 0;
  menu.lastElementChild.replaceChildren(...keys.map((key) => {
    const others = shown.filter((each) => each !== key);
    const pick = () => change({ column: shown.includes(key) ? (others.length ? others : ["none"]) : [...shown, key] });
    return make("label", {}, make("input", { type: "checkbox", checked: shown.includes(key), "data-key": key, onchange: pick }), key);
  }));
  if (focused) menu.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

const classOf = (column) => [column.number ? "number" : "", column.small ? "small-out" : ""].join(" ").trim();

function drawRow(row, columns) {
  const isChosen = view.run.includes(row.id);
  const pick = make("td", { class: "pick" },
    make("input", { type: "checkbox", checked: isChosen, "data-key": row.id, "aria-label": `show ${row.name}`, onchange: () => toggle("run", row.id), onkeydown: walk }),
    make("span", { class: "swatch", "--colour": isChosen ? colourOf(row.id) : "transparent" }));
  const name = make("th", { scope: "row", title: row.id },
    make("button", { type: "button", tabIndex: -1, title: `${row.id}\nshow this run alone`, onclick: () => change({ run: [row.id] }) }, row.name),
    ...row.tags.map((tag) => make("span", { class: "tag" }, tag)), row.note ? make("span", { class: "of", title: row.note }, "✎") : null);
  return make("tr", {}, pick, name, ...columns.slice(1).map((column) => make("td", { class: classOf(column) }, column.show(row))));
}

function walk(event) {
  const boxes = [...byId("runs").querySelectorAll("tbody input")];
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) boxes[boxes.indexOf(event.target) + step]?.focus();
  else if (event.key === "Enter") change({ run: [event.target.dataset.key] });
  else return;
  event.preventDefault();
}
