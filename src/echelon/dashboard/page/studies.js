// Experiments and searches: runs of one folder side by side, by the settings in which they differ.

import { colourOf, inPage } from "./colours.js";
import { byId, make, makeTable } from "./dom.js";
import { plain, trim, whole } from "./format.js";
import { bestOf, metricOf, testOf, variedSettings } from "./run_table.js";
import { change, view } from "./view.js";

const MOST_RUNS = 20; // that are selected with their study
const MOST_SETTINGS = 8; // columns of a study's table
const HOW_FAR = "train.stop_at"; // of a search's trials; not a setting that is tried

const scoreOf = (row) => bestOf(row) ?? testOf(row);
const isBetter = (a, b) => (scoreOf(b) ?? -Infinity) - (scoreOf(a) ?? -Infinity) || (a.loss ?? Infinity) - (b.loss ?? Infinity);

// Folders with several runs, the best run of each first.
export function findStudies(rows, settings) {
  const folders = Map.groupBy(rows, (row) => row.folder);
  return [...folders].filter(([, runs]) => runs.length > 1).map(([folder, runs]) => {
    return { folder, name: folder.split("/").slice(-2).join("/"), runs: runs.toSorted(isBetter), varied: variedSettings(runs, settings).filter((key) => key !== HOW_FAR) };
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
  const shares = sharesOf(study.runs, keys, settings);
  const by = keys.includes(view.by) ? view.by : shares[0]?.[0] ?? keys.find((key) => key !== "seed") ?? keys[0];
  byId("shares").hidden = shares.length === 0;
  byId("shares").textContent = `How much of the scores' order goes with each setting: ${shares.slice(0, MOST_SETTINGS).map(([key, share]) => `${key} ${Math.round(100 * share)}%`).join(", ")}.`;
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

// The settings with how much of the scores' order goes with them, the largest first.
function sharesOf(runs, keys, settings) {
  const scored = runs.filter((row) => Number.isFinite(scoreOf(row)));
  const shares = keys.map((key) => [key, explained(scored.map((row) => [settings[row.id]?.[key], scoreOf(row)]))]);
  return shares.filter(([, share]) => share !== null).sort(([, a], [, b]) => b - a);
}

// The share of the variance of the scores' ranks between equal values of a setting or, if every run has a number of its own,
// along it. Ranks, because one run that diverged would hide everything else. Adjusted for the number of values, so that
// chance explains about nothing. Null if there are too few runs.
export function explained(pairs) {
  const groups = Map.groupBy(pairs, ([value]) => value);
  const isEach = groups.size === pairs.length;
  if (isEach && !pairs.every(([value]) => value !== "" && Number.isFinite(Number(value)))) return null;
  const places = (values) => values.map((value) => values.filter((other) => other < value).length + values.filter((other) => other === value).length / 2);
  const scores = places(pairs.map(([, score]) => score));
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const squares = (values, middle) => values.reduce((sum, value) => sum + (value - middle) ** 2, 0);
  const total = squares(scores, mean(scores));
  const free = pairs.length - (isEach ? 2 : groups.size);
  if (free < 2 || groups.size < 2 || !total) return null;
  let within = 0;
  if (isEach) {
    const xs = places(pairs.map(([value]) => Number(value)));
    const product = xs.reduce((sum, x, number) => sum + (x - mean(xs)) * (scores[number] - mean(scores)), 0);
    within = total - product ** 2 / squares(xs, mean(xs));
  } else {
    for (const own of Map.groupBy(scores, (_, number) => pairs[number][0]).values()) within += squares(own, mean(own));
  }
  return Math.max(0, 1 - within / free / (total / (pairs.length - 1)));
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
