// The charts of the selected runs, drawn by plotly.

import { ask, describe } from "./ask.js";
import { colourOf, inPage, numbered } from "./colours.js";
import { byId, make, makeTable, save } from "./dom.js";
import { cell, curveLabel, plain, trim } from "./format.js";
import { change, toggle, view } from "./view.js";

const CHARTS = [
  { id: "loss", title: "Loss" },
  { id: "learning_rate", title: "Learning rate", fromZero: true },
  { id: "gradient_norm", title: "Gradient norm" },
  { id: "speed", title: "Speed, targets a second", fromZero: true },
  { id: "step_time", title: "Time of a step, seconds", fromZero: true },
  { id: "phases", title: "Where a step's time goes, seconds" },
  { id: "bytes", title: "Bytes a step at the first worker's network interface", fromZero: true },
  { id: "network", title: "Traffic of hosts, bytes a second each way", fromZero: true },
  { id: "processors", title: "How busy the processors are, %", fromZero: true },
  { id: "gpus", title: "How busy the GPUs are, %", fromZero: true },
  { id: "memory", title: "Memory in use, bytes", fromZero: true },
];
const DASHES = ["solid", "dot", "dash", "longdash", "dashdot"];
const EVENTS = { start: "triangle-up-open", failure: "x", event: "circle", end: "square-open", checkpoint: "line-ns-open" };
const EVENT_ROWS = 5; // runs' events stand above each other
const QUIET = { displayModeBar: false, doubleClick: "autosize" };
const cards = new Map();
let latest = 0;

// Draw all charts of these rows anew; a later call ends an earlier one.
export async function drawCharts(rows, hourly) {
  const number = (latest += 1);
  const wanted = chartsOf(rows);
  for (const [id, card] of cards) if (!wanted.some((chart) => chart.id === id)) drop(id, card);
  byId("charts").append(...wanted.map((chart) => cardOf(chart).root)); // in their order
  for (const chart of wanted) {
    if (number !== latest) return;
    const card = cardOf(chart);
    try {
      const drawn = await collect(chart, rows, hourly);
      if (number !== latest) return;
      card.root.hidden = drawn.traces.length === 0;
      if (drawn.traces.length) await draw(card, chart, drawn);
    } catch (error) {
      card.values.replaceChildren(`this chart could not be drawn: ${error.message}`);
    }
  }
  document.body.dataset.drawn = String(number);
}

// Without runs there is nothing to draw, and what was drawn may have had other colours. Cards keep their places.
export function hideCharts() {
  latest += 1;
  for (const card of cards.values()) card.plot.classList.add("stale");
}

function chartsOf(rows) {
  const metrics = Object.assign({}, ...rows.map((row) => row.metrics));
  const scores = Object.entries(metrics).map(([key, name]) => ({ id: `valid/${key}`, title: `${name} on the validation set` }));
  return [CHARTS[0], ...scores, ...CHARTS.slice(1)];
}

function drop(id, card) {
  window.Plotly.purge(card.plot);
  card.root.remove();
  cards.delete(id);
}

function cardOf(chart) {
  if (!cards.has(chart.id)) cards.set(chart.id, makeCard(chart));
  return cards.get(chart.id);
}

function makeCard(chart) {
  const card = { traces: [] };
  const button = (text, label, onclick, pressed) =>
    make("button", { type: "button", class: "quiet", "aria-label": `${label}: ${chart.title}`, title: label, "aria-pressed": pressed, onclick }, text);
  card.log = button("log", "logarithmic scale", () => {
    view.y = withoutRange(chart); // its limits were those of the other scale
    toggle("log", chart.id);
  }, "false");
  card.wide = button("⤢", "full width", () => toggle("wide", chart.id), "false");
  card.plot = make("div", { class: "plot", role: "img" });
  // Not plotly's own `responsive`: that follows the window, and a chart also changes when it is made wide.
  new ResizeObserver(() => { if (card.plot.data && card.plot.offsetWidth) window.Plotly.Plots.resize(card.plot); }).observe(card.plot);
  card.values = make("div", {});
  const details = make("details", { ontoggle: () => details.open && showValues(card) }, make("summary", {}, "values"), card.values);
  card.details = details;
  card.root = make("article", { class: "chart", "data-chart": chart.id },
    make("div", { class: "bar" }, make("h3", {}, chart.title), make("span", { class: "spring" }), card.log,
      button("CSV", "save the points as CSV", () => saveCsv(card, chart)),
      button("PNG", "save the picture as PNG", () => savePng(card, chart)), card.wide),
    card.plot, details);
  return card;
}

async function collect(chart, rows, hourly) {
  const shown = rows.filter((row) => !view.hidden.includes(row.id));
  if (!shown.length) return { traces: [], axis: "", kind: "lines" };
  if (chart.id === "phases" && (shown.length > 1 || view.group)) return phaseBars(shown);
  const pairs = [["chart", chart.id], ["x", view.x], ["smooth", view.smooth], ...shown.map((row) => ["run", row.id])];
  if (view.group) pairs.push(["group", view.group]);
  const answer = await ask("api/curves", pairs);
  const found = answer.groups ? answer.groups.flatMap(groupTraces(answer.groups))
    : chart.id === "phases" ? answer.curves.map((curve, number) => phaseArea(curve, number, shown[0])) : answer.curves.flatMap(runTraces(answer.curves, shown));
  if (found.length && view.events === "on" && !view.group && chart.id !== "phases") found.push(...await eventTraces(shown, hourly));
  return { traces: found, axis: axisTitle(shown, hourly), kind: "lines" };
}

const axisTitle = (rows, hourly) => ({
  step: "steps", time: "time since the start", seen: rows.every((row) => row.unit === rows[0].unit) ? rows[0].unit : "targets",
  money: hourly === null ? "host hours" : "dollars",
})[view.x];

// Seconds as a date, which plotly labels as time; the first second is that of 1970.
const place = (values) => (view.x === "time" ? values.map((value) => value * 1000) : values);

const nameOf = (row, name) => plain([row.name, curveLabel(name)].filter(Boolean).join(" · "));

function runTraces(curves, rows) {
  const byKey = new Map(rows.map((row) => [row.id, row]));
  const names = [...new Set(curves.map((curve) => curve.name))];
  return (curve) => {
    const row = byKey.get(curve.run);
    const isSmooth = curve.smooth_x.length > 0;
    const isPinned = view.pinned.includes(row.id);
    const dash = DASHES[(curve.name.startsWith("valid/loss") ? 2 : ownNames(curves, curve.run, names).indexOf(curve.name)) % DASHES.length];
    const raw = {
      type: "scatter", name: nameOf(row, curve.name), x: place(curve.x), y: curve.y, showlegend: false,
      mode: curve.name.startsWith("valid/") || curve.x.length < 3 ? "lines+markers" : "lines", marker: { size: 5 },
      line: { color: colourOf(row.id), width: isSmooth ? 1 : isPinned ? 3 : 1.7, dash: isSmooth ? "solid" : dash },
      opacity: isSmooth ? 0.28 : 1, hoverinfo: isSmooth ? "skip" : undefined,
      hovertemplate: isSmooth ? undefined : "%{y:.5~g}<extra>%{fullData.name}</extra>", meta: { kind: "recorded", curve: curve.name, run: plain(row.name) },
    };
    if (!isSmooth) return [raw];
    const smooth = {
      ...raw, x: place(curve.smooth_x), y: curve.smooth_y, opacity: 1, mode: "lines", hoverinfo: undefined,
      hovertemplate: "%{y:.5~g}<extra>%{fullData.name}</extra>", line: { color: colourOf(row.id), width: isPinned ? 3.5 : 2, dash },
      meta: { ...raw.meta, kind: "smoothed" },
    };
    return [raw, smooth];
  };
}

const ownNames = (curves, run, names) => names.filter((name) => curves.some((curve) => curve.run === run && curve.name === name));

function phaseArea(curve, number, row) {
  return {
    type: "scatter", mode: "lines", stackgroup: "phases", name: plain(curveLabel(curve.name)), showlegend: true,
    x: place(curve.smooth_x.length ? curve.smooth_x : curve.x), y: curve.smooth_x.length ? curve.smooth_y : curve.y,
    line: { width: 0.5, color: numbered(number) }, hovertemplate: "%{y:.4~g} s<extra>%{fullData.name}</extra>",
    meta: { kind: curve.smooth_x.length ? "smoothed" : "recorded", curve: curve.name, run: plain(row.name) },
  };
}

async function phaseBars(rows) {
  const described = await Promise.all(rows.map(describe));
  const names = [...new Set(described.flatMap((each) => Object.keys(each.phases)))].filter((name) => described.some((each) => each.phases[name]));
  const labels = rows.map((row) => plain(row.name.length > 22 ? `…${row.name.slice(-21)}` : row.name));
  const traces = names.map((name, number) => ({
    type: "bar", orientation: "h", name: plain(name), y: rows.map((_, index) => index), showlegend: true,
    x: described.map((each) => (each.steps ? (each.phases[name] || 0) / each.steps : 0)), marker: { color: numbered(number) },
    hovertemplate: "%{x:.4~g} s<extra>%{fullData.name}</extra>", meta: { kind: "mean", curve: `phase/${name}`, runs: rows.map((row) => row.name) },
  }));
  return { traces, axis: "seconds a step", kind: "bars", labels };
}

function groupTraces(groups) {
  const labels = [...new Set(groups.map((group) => group.group))];
  return (group) => {
    const colour = numbered(labels.indexOf(group.group));
    const name = plain([group.group, curveLabel(group.name)].filter(Boolean).join(" · "));
    const dash = group.name === "valid/loss" || group.name === "sent" ? "dash" : "solid";
    const edge = { type: "scatter", mode: "lines", line: { width: 0 }, showlegend: false, hoverinfo: "skip", x: place(group.x) };
    return [
      { ...edge, y: group.low, name, meta: { kind: "mean - spread", curve: group.name, run: plain(group.group) } },
      { ...edge, y: group.high, name, fill: "tonexty", fillcolor: `${colour}2e`, meta: { kind: "mean + spread", curve: group.name, run: plain(group.group) } },
      {
        type: "scatter", mode: "lines", x: place(group.x), y: group.mean, name: `${name} (${group.runs})`, line: { color: colour, width: 2.2, dash },
        showlegend: true, hovertemplate: "%{y:.5~g}<extra>%{fullData.name}</extra>", meta: { kind: "mean", curve: group.name, run: plain(group.group) },
      },
    ];
  };
}

async function eventTraces(rows, hourly) {
  const axis = { step: "step", time: "seconds", seen: "seen", money: "host_seconds" }[view.x];
  const scale = view.x === "money" ? (hourly ?? 1) / 3600 : view.x === "time" ? 1000 : 1;
  const described = await Promise.all(rows.map(describe));
  return rows.map((row, number) => {
    const events = described[number].events.filter((event) => event.kind in EVENTS);
    return {
      type: "scatter", mode: "markers", yaxis: "y2", name: plain(row.name), showlegend: false, cliponaxis: false,
      x: events.map((event) => event[axis] * scale), y: events.map(() => 0.025 + 0.04 * (number % EVENT_ROWS)),
      text: events.map((event) => plain(`${event.text}`.split("\n")[0].slice(0, 140))),
      marker: { color: colourOf(row.id), size: events.map((event) => (event.kind === "failure" ? 8 : 6)), symbol: events.map((event) => EVENTS[event.kind]), line: { width: 1.5, color: colourOf(row.id) } },
      hovertemplate: "%{text}<extra>%{fullData.name}</extra>", meta: { kind: "event", curve: "events" },
    };
  }).filter((trace) => trace.x.length);
}

async function draw(card, chart, { traces, axis, kind, labels }) {
  const isLog = view.log.includes(chart.id);
  card.traces = traces;
  card.axis = axis;
  card.log.setAttribute("aria-pressed", String(isLog));
  const isWide = view.wide.includes(chart.id);
  card.wide.setAttribute("aria-pressed", String(isWide));
  card.root.classList.toggle("wide", isWide);
  card.log.hidden = kind === "bars";
  await window.Plotly.react(card.plot, traces, layout(chart, axis, kind, labels), QUIET);
  card.plot.setAttribute("aria-label", inWords(chart, traces, axis));
  card.plot.classList.remove("stale");
  if (card.details.open) showValues(card);
  if (card.listens) return;
  card.listens = true;
  card.plot.on("plotly_relayout", (event) => follow(card, chart, event));
}

function layout(chart, axis, kind, labels) {
  const [ink, line] = [inPage("--faint"), inPage("--line")];
  const lines = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const zoom = view.zoom && kind === "lines" ? view.zoom.split("~").map(Number) : null;
  const found = {
    margin: { l: 46, r: 12, t: 8, b: 34 }, paper_bgcolor: inPage("--card"), plot_bgcolor: inPage("--card"),
    font: { color: ink, size: 12, family: "system-ui, sans-serif" }, dragmode: view.drag, hovermode: "x unified",
    hoverlabel: { bgcolor: inPage("--card"), bordercolor: line, font: { color: inPage("--ink"), size: 12 }, namelength: 40 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11 } },
    xaxis: { ...lines, title: { text: axis, standoff: 6, font: { size: 11 } } },
    yaxis: { ...lines, type: view.log.includes(chart.id) ? "log" : "linear", rangemode: chart.fromZero ? "tozero" : "normal", exponentformat: "SI" },
    yaxis2: { overlaying: "y", range: [0, 1], fixedrange: true, visible: false },
  };
  if (kind === "bars") {
    Object.assign(found, { barmode: "stack", hovermode: "closest" });
    Object.assign(found.yaxis, { fixedrange: true, tickvals: labels.map((_, index) => index), ticktext: labels, autorange: "reversed", type: "linear" });
    return found;
  }
  if (view.x === "time") Object.assign(found.xaxis, { type: "date", tickformatstops: times(), hoverformat: "%-jd %H:%M:%S" });
  if (zoom) Object.assign(found.xaxis, { range: zoom, autorange: false });
  else Object.assign(found.xaxis, { autorange: true });
  const range = rangeOf(chart);
  if (range) Object.assign(found.yaxis, { range, autorange: false });
  return found;
}

const times = () => [
  { dtickrange: [null, 60000], value: "%H:%M:%S" }, { dtickrange: [60000, 86400000], value: "%H:%M" }, { dtickrange: [86400000, null], value: "day %-j" },
];

// One x-axis for all charts: to zoom in one is to zoom in all. The y-axis is the chart's own. The address has both.
function follow(card, chart, event) {
  if (card.traces[0]?.type === "bar") return;
  const changes = {};
  const [left, right] = limits(event, "xaxis");
  if (event["xaxis.autorange"]) changes.zoom = "";
  else if (left !== undefined) changes.zoom = [left, right].map((value) => (typeof value === "string" ? Date.parse(`${value.replace(" ", "T")}Z`) : value)).join("~");
  const [low, high] = limits(event, "yaxis");
  if (event["yaxis.autorange"]) changes.y = withoutRange(chart);
  else if (low !== undefined) changes.y = [...withoutRange(chart), [chart.id, low, high].join("~")];
  if (Object.keys(changes).length) change(changes);
}

const limits = (event, axis) => [event[`${axis}.range[0]`], event[`${axis}.range[1]`]];

const withoutRange = (chart) => view.y.filter((each) => !each.startsWith(`${chart.id}~`));

// Where the reader has zoomed in, if so; of a logarithmic axis, exponents.
const rangeOf = (chart) => view.y.find((each) => each.startsWith(`${chart.id}~`))?.split("~").slice(1).map(Number);

// Curves, without edges of a spread and what stands faintly behind a smoothed curve.
const inFront = (card) => card.traces.filter(({ meta: { kind }, opacity }) => kind !== "event" && !kind.startsWith("mean ") && !(kind === "recorded" && opacity < 1));

function rowsOf(card) {
  const bars = (trace) => (trace.type === "bar" ? trace.x : trace.y);
  return inFront(card).filter((trace) => bars(trace).length).map((trace) => {
    const values = bars(trace);
    const low = values.reduce((a, b) => Math.min(a, b));
    const high = values.reduce((a, b) => Math.max(a, b));
    return [readable(trace.name), values.at(-1), low, high];
  });
}

const readable = (name) => name.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

function inWords(chart, traces, axis) {
  const parts = rowsOf({ traces }).slice(0, 12).map(([name, last, low, high]) => `${name}: last ${trim(last)}, lowest ${trim(low)}, highest ${trim(high)}`);
  return `${chart.title}, over ${axis}. ${parts.join("; ")}.`;
}

function showValues(card) {
  card.values.replaceChildren(makeTable(["curve", "last", "lowest", "highest"], rowsOf(card).map(([name, ...values]) => [name, ...values.map(trim)])));
}

const fileName = (chart) => `echelon-${chart.id.replace(/[^a-z0-9]+/g, "-")}`;

export function csvOf(card) {
  const lines = card.traces.flatMap((trace) => trace.x.map((x, number) => {
    const { curve, kind, run, runs } = trace.meta;
    if (runs) return [runs[number], curve, kind, "", x];
    return [readable(run ?? trace.name), curve, kind, view.x === "time" ? x / 1000 : x, kind === "event" ? readable(trace.text[number]) : trace.y[number]];
  }));
  return [["run", "curve", "kind", card.axis, "value"], ...lines].map((line) => `${line.map(cell).join(",")}\n`).join("");
}

function saveCsv(card, chart) {
  const address = URL.createObjectURL(new Blob([csvOf(card)], { type: "text/csv" }));
  save(`${fileName(chart)}.csv`, address);
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// A picture leaves the page, so it says what it shows: the title above it, the runs below.
async function savePng(card, chart) {
  const named = inFront(card);
  const data = card.traces.map((trace) => ({ ...trace, showlegend: named.includes(trace) }));
  const rows = Math.ceil(named.length / 3);
  const layout = {
    ...card.plot.layout, width: 1100, height: 560 + 20 * rows, autosize: false, showlegend: true,
    margin: { l: 60, r: 20, t: 50, b: 70 + 20 * rows }, title: { text: plain(chart.title), x: 0.02, font: { size: 17, color: inPage("--ink") } },
    legend: { orientation: "h", x: 0, y: -0.14, yanchor: "top", font: { size: 12 } },
  };
  save(`${fileName(chart)}.png`, await window.Plotly.toImage({ data, layout }, { format: "png", scale: 2 }));
}
