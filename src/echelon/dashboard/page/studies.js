// Experiments and searches: runs of one folder side by side, by the settings in which they differ.

import { colourOf, inPage } from "./colours.js";
import { byId, make, makeTable } from "./dom.js";
import { plain, trim, whole } from "./format.js";
import { bestOf, metricOf, testOf } from "./run_table.js";
import { change, view } from "./view.js";

const MOST_RUNS = 20; // that are selected with their study
const MOST_SETTINGS = 8; // columns of a study's table
const NOT_VARIED = new Set(["name", "version", "train.stop_at"]);

const scoreOf = (row) => bestOf(row) ?? testOf(row);
const isBetter = (a, b) => (scoreOf(b) ?? -Infinity) - (scoreOf(a) ?? -Infinity) || (a.loss ?? Infinity) - (b.loss ?? Infinity);

// Folders with several runs, the best run of each first.
export function findStudies(rows, settings) {
  const folders = Map.groupBy(rows, (row) => row.folder);
  return [...folders].filter(([, runs]) => runs.length > 1).map(([folder, runs]) => {
    const own = runs.map((row) => settings[row.id] || {});
    const keys = [...new Set(own.flatMap(Object.keys))].sort();
    const varied = keys.filter((key) => !NOT_VARIED.has(key) && new Set(own.map((each) => each[key])).size > 1);
    return { folder, name: folder.split("/").slice(-2).join("/"), runs: runs.toSorted(isBetter), varied };
  }).sort((a, b) => a.folder.localeCompare(b.folder));
}

export function drawStudies(rows, settings) {
  const studies = findStudies(rows, settings);
  const chosen = studies.find((study) => study.folder === view.study);
  const lines = studies.map((study) => [
    make("button", { type: "button", class: "link", "data-key": study.folder, "aria-pressed": String(study === chosen), title: study.folder, onclick: () => open(study) }, study.name),
    whole(study.runs.length), whole(study.runs.filter((row) => row.state === "finished").length),
    scoreText(study.runs[0]), study.runs[0].name, study.varied.slice(0, MOST_SETTINGS).join(", "),
  ]);
  const focused = document.activeElement?.dataset?.key;
  byId("studies").replaceChildren(studies.length ? makeTable(["Folder", "Runs", "Finished", "Best score", "Best run", "What varies"], lines)
    : make("p", { class: "faint" }, "No folder here has two runs or more. `echelon experiment` and `echelon search` make such folders."));
  if (focused) byId("studies").querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  byId("study").hidden = !chosen;
  if (chosen) drawStudy(chosen, settings);
}

function open(study) {
  change({ study: study.folder, by: "", run: study.runs.slice(0, MOST_RUNS).map((row) => row.id) });
}

const scoreText = (row) => (scoreOf(row) === undefined || scoreOf(row) === null ? trim(row.loss) && `loss ${trim(row.loss)}` : `${scoreOf(row).toFixed(2)} ${row.metrics[metricOf(row)]}`);

function drawStudy(study, settings) {
  const keys = study.varied;
  const by = keys.includes(view.by) ? view.by : keys.find((key) => key !== "seed") ?? keys[0];
  const choose = byId("by");
  choose.replaceChildren(...keys.map((key) => make("option", { value: key }, key)));
  choose.value = by ?? "";
  const columns = keys.slice(0, MOST_SETTINGS);
  const lines = study.runs.map((row, number) => [
    make("button", { type: "button", class: "link", title: "show this run alone", onclick: () => change({ run: [row.id] }) }, row.name, number === 0 ? " ★" : ""),
    scoreText(row), trim(row.loss), ...columns.map((key) => settings[row.id]?.[key] ?? ""), row.state,
  ]);
  byId("trials").replaceChildren(makeTable(["Run", "Score", "Loss", ...columns, "State"], lines));
  byId("study-plot").hidden = by === undefined;
  if (by !== undefined && window.Plotly) drawPlot(study, by, settings);
}

function drawPlot(study, by, settings) {
  const runs = study.runs.filter((row) => settings[row.id]?.[by] !== undefined);
  const hasScores = runs.some((row) => Number.isFinite(scoreOf(row)));
  const shown = runs.filter((row) => Number.isFinite(hasScores ? scoreOf(row) : row.loss));
  const values = shown.map((row) => settings[row.id][by]);
  const areNumbers = values.every((value) => value !== "" && Number.isFinite(Number(value)));
  const numbers = values.map(Number);
  const isLog = areNumbers && Math.min(...numbers) > 0 && Math.max(...numbers) >= 20 * Math.min(...numbers);
  const line = inPage("--line");
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const title = hasScores ? shown.map((row) => row.metrics[metricOf(row)])[0] ?? "score" : "loss";
  const trace = {
    type: "scatter", mode: "markers", x: areNumbers ? numbers : values.map(plain), y: shown.map((row) => (hasScores ? scoreOf(row) : row.loss)),
    text: shown.map((row) => plain(row.name)), hovertemplate: "%{text}<br>%{x}: %{y:.5~g}<extra></extra>",
    marker: { size: 11, color: shown.map((row) => (view.run.includes(row.id) ? colourOf(row.id) : inPage("--faint"))) },
  };
  const layout = {
    margin: { l: 46, r: 12, t: 8, b: 40 }, paper_bgcolor: inPage("--card"), plot_bgcolor: inPage("--card"), showlegend: false, hovermode: "closest",
    font: { color: inPage("--faint"), size: 12, family: "system-ui, sans-serif" },
    xaxis: { ...axis, title: { text: plain(by) }, type: isLog ? "log" : areNumbers ? "linear" : "category" }, yaxis: { ...axis, title: { text: plain(title) } },
  };
  const place = byId("study-plot");
  place.setAttribute("aria-label", `${title} by ${by}. ${shown.map((row, number) => `${row.name}: ${values[number]}, ${trim(trace.y[number])}`).join("; ")}`);
  window.Plotly.react(place, [trace], layout, { displayModeBar: false, responsive: true });
}
