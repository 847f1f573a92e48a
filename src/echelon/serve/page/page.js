// The page of `echelon serve`: translate while one types, show alternatives and attention, translate files.

import { keepTheme, takeDrops, takeToken, token } from "./theme.js";

const byId = (id) => document.getElementById(id);
const PAUSE_MS = 150;
const FILE_LINES = 32;
const KEPT = 2000;

const state = {
  model: null,
  found: new Map(), // what is known already: settings and line -> translation
  chosen: new Map(), // the alternative a reader has chosen: settings and line -> its place
  lines: [],
  selected: 0, // the line whose alternatives are shown
  waiting: null, // of the request under way
  timer: 0,
  file: null,
};

// --- talking to the server ---

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const answer = await fetch(path, { ...options, headers, signal });
  const content = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (answer.ok) return content;
  const error = new Error(content.error);
  error.status = answer.status;
  error.again = Number(answer.headers.get("Retry-After"));
  throw error;
}

async function introduce() {
  byId("entry").hidden = true;
  try {
    const model = await ask("v1/model");
    state.model = model;
    const language = (code) => {
      try { return new Intl.DisplayNames(["en"], { type: "language" }).of(code); } catch { return code; }
    };
    byId("model").textContent =
      `${model.name} · ${model.source_language} → ${model.target_language} · ${model.engine}, ${model.precision}`;
    byId("source-language").textContent = language(model.source_language);
    byId("target-language").textContent = language(model.target_language);
    byId("source").lang = model.source_language;
    byId("target").lang = model.target_language;
    setRange("beam", model.beam);
    setRange("length-penalty", model.length_penalty);
    byId("curl").textContent =
      `curl ${location.origin}/v1/translate -H 'Content-Type: application/json' -d '{"text": "…"}'`;
    complain("");
    translateSoon(0);
  } catch (error) {
    byId("model").textContent = "no model";
    if (error.status === 401) byId("entry").hidden = false;
    else complain(`The server cannot be reached: ${error.message}`);
  }
}

// --- translating while one types ---

function settings() {
  const number = (id) => Number(byId(id).value);
  const wanted = { n_best: number("n-best"), sentences: byId("sentences").checked, alignment: true };
  if (byId("sample").checked) wanted.temperature = number("temperature");
  else Object.assign(wanted, { beam: number("beam"), length_penalty: number("length-penalty") });
  if (byId("prefix").value.trim()) wanted.prefix = byId("prefix").value;
  return wanted;
}

const keyOf = (line) => JSON.stringify([settings(), line]);

function translateSoon(pause = PAUSE_MS) {
  clearTimeout(state.timer);
  state.timer = setTimeout(translateNow, pause);
}

async function translateNow() {
  clearTimeout(state.timer);
  state.waiting?.abort();
  const text = byId("source").value;
  byId("count").textContent = text ? `${text.length.toLocaleString("en")} characters` : "";
  state.lines = text.split("\n");
  const missing = [...new Set(state.lines)].filter((line) => line.trim() && !state.found.has(keyOf(line)));
  if (missing.length === 0) {
    show();
    return;
  }
  const waiting = (state.waiting = new AbortController());
  const wanted = settings();
  const keys = missing.map(keyOf);
  byId("target").classList.add("waiting");
  try {
    for (const { start, lines } of chunks(missing)) {
      const answer = await ask("v1/translate", { ...wanted, text: lines }, waiting.signal);
      answer.translations.forEach((found, index) => remember(keys[start + index], found));
      byId("time").textContent = `${Math.max(1, Math.round(1000 * answer.seconds))} ms`;
    }
    complain("");
    show();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error.status === 401) introduce();
    else if (error.again) state.timer = setTimeout(translateNow, 1000 * error.again);
    else complain(error.message);
  } finally {
    if (state.waiting === waiting) byId("target").classList.remove("waiting");
  }
}

function* chunks(lines) {
  let start = 0;
  while (start < lines.length) {
    let end = start, characters = 0;
    while (end < lines.length && end - start < FILE_LINES) {
      characters += lines[end].length;
      if (end > start && characters > state.model.characters) break;
      end += 1;
    }
    yield { start, lines: lines.slice(start, end) };
    start = end;
  }
}

function remember(key, translation) {
  if (state.found.size > KEPT) state.found.clear();
  state.found.set(key, translation);
}

function complain(message) {
  byId("problem").textContent = message;
  byId("problem").hidden = !message;
}

// --- showing what was found ---

function textOf(line) {
  const key = keyOf(line);
  const found = state.found.get(key);
  return found ? found.alternatives[state.chosen.get(key) ?? 0].text : "";
}

function show() {
  state.selected = Math.min(state.selected, state.lines.length - 1);
  const paragraphs = state.lines.map((line, number) => {
    const paragraph = document.createElement("p");
    const found = state.found.get(keyOf(line));
    const isBest = !state.chosen.get(keyOf(line));
    if (found?.alignment && isBest && number === state.selected) paragraph.append(...wordSpans(found.alignment));
    else paragraph.textContent = textOf(line);
    paragraph.addEventListener("click", () => select(number));
    return paragraph;
  });
  byId("target").replaceChildren(...paragraphs);
  showDetails();
}

function select(number) {
  if (number === state.selected) return;
  state.selected = number;
  show();
}

function showDetails() {
  const line = state.lines[state.selected] ?? "";
  const found = state.found.get(keyOf(line));
  byId("details").hidden = !found;
  if (!found) return;
  const key = keyOf(line), chosen = state.chosen.get(key) ?? 0;
  const best = found.alternatives[0].score;
  byId("alternatives").replaceChildren(
    ...found.alternatives.map((alternative, place) => {
      const item = document.createElement("li");
      const button = item.appendChild(document.createElement("button"));
      button.type = "button";
      button.ariaPressed = String(place === chosen);
      button.lang = state.model.target_language;
      button.append(span("", alternative.text), span("score", alternative.score.toFixed(2)));
      const gauge = button.appendChild(span("gauge", ""));
      gauge.appendChild(document.createElement("i")).style.width = `${100 * Math.exp(alternative.score - best)}%`;
      button.addEventListener("click", () => choose(key, place));
      return item;
    }),
  );
  byId("alignment").replaceChildren(found.alignment ? heatMap(found.alignment) : span("faint", "Nothing to show"));
}

function choose(key, place) {
  state.chosen.set(key, place);
  show();
  byId("alternatives").children[place]?.firstChild.focus();
}

function span(kind, text) {
  const element = document.createElement("span");
  element.className = kind;
  element.textContent = text;
  return element;
}

// Subword pieces to words: ▁ begins one.
function wordsOf(pieces) {
  const words = [];
  pieces.forEach((piece, index) => {
    if (piece.startsWith("▁") || words.length === 0) words.push({ text: "", pieces: [] });
    words.at(-1).text += piece.replace("▁", "");
    words.at(-1).pieces.push(index);
  });
  return words;
}

// Attention between words: of the target's pieces the mean, of the source's the sum.
function wordWeights(alignment) {
  const isEnd = (piece) => piece === "</s>";
  const source = wordsOf(alignment.source.map((piece) => (isEnd(piece) ? "▁⏎" : piece)));
  const target = wordsOf(alignment.target);
  const weights = target.map((row) =>
    source.map((column) => {
      const total = row.pieces.reduce(
        (sum, t) => sum + column.pieces.reduce((inner, s) => inner + alignment.weights[t][s], 0), 0);
      return total / row.pieces.length;
    }),
  );
  return { source, target, weights };
}

function wordSpans(alignment) {
  const { target, source, weights } = wordWeights(alignment);
  return target.flatMap((word, row) => {
    const shown = span("word", word.text);
    const most = weights[row].indexOf(Math.max(...weights[row]));
    shown.title = `${source[most].text} (${Math.round(100 * weights[row][most])}%)`;
    shown.addEventListener("mouseenter", () => markRow(row, true));
    shown.addEventListener("mouseleave", () => markRow(row, false));
    return row ? [document.createTextNode(" "), shown] : [shown];
  });
}

function markRow(row, isOn) {
  const line = byId("alignment").querySelectorAll("tbody th")[row];
  line?.classList.toggle("looked", isOn);
}

function heatMap(alignment) {
  const { source, target, weights } = wordWeights(alignment);
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  head.appendChild(document.createElement("th"));
  for (const word of source) head.appendChild(document.createElement("th")).append(span("", word.text));
  const body = table.createTBody();
  target.forEach((word, row) => {
    const line = body.insertRow();
    line.appendChild(document.createElement("th")).textContent = word.text;
    source.forEach((other, column) => {
      const cell = line.insertCell();
      const weight = Math.min(1, weights[row][column]);
      cell.style.setProperty("--weight", weight.toFixed(3));
      cell.title = `${word.text} ← ${other.text}: ${Math.round(100 * weight)}%`;
    });
  });
  return table;
}

// --- files ---

async function translateFile(file) {
  if (file.size > 50e6) return complain(`${file.name} has ${Math.round(file.size / 1e6)} MB; use \`echelon translate\``);
  const lines = (await file.text()).replace(/\r\n/g, "\n").replace(/\n$/, "").split("\n");
  state.file?.abort();
  const job = (state.file = new AbortController());
  const { n_best, alignment, ...wanted } = settings();
  const done = [];
  byId("file").hidden = false;
  byId("file-name").textContent = file.name;
  byId("file-save").hidden = true;
  byId("file-stop").hidden = false;
  try {
    for (const { start, lines: part } of chunks(lines)) {
      const answer = await patiently(() => ask("v1/translate", { ...wanted, text: part }, job.signal), job.signal);
      done.push(...answer.translations.map((found) => found.text));
      byId("file-progress").value = (start + part.length) / lines.length;
      byId("file-count").textContent =
        `${done.length.toLocaleString("en")} of ${lines.length.toLocaleString("en")} lines`;
      byId("file-text").textContent = done.slice(-12).join("\n");
      byId("file-text").scrollTop = 1e9;
    }
    offer(file.name, done);
  } catch (error) {
    if (error.name === "AbortError") byId("file-count").textContent += ", stopped";
    else complain(`${file.name}: ${error.message}`);
    if (done.length) offer(file.name, done);
  } finally {
    byId("file-stop").hidden = true;
  }
}

// A busy server says when to come again.
async function patiently(attempt, signal) {
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      if (!error.again || signal.aborted) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000 * error.again));
    }
  }
}

function offer(name, lines) {
  const link = byId("file-save");
  URL.revokeObjectURL(link.href);
  link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/plain" }));
  const dot = name.lastIndexOf(".");
  const stem = dot > 0 ? name.slice(0, dot) : name;
  link.download = `${stem}.${state.model.target_language}.txt`;
  link.hidden = false;
}

// --- hands ---

function setRange(id, value) {
  byId(id).value = value;
  document.querySelector(`output[for="${id}"]`).value = value;
}

function clear() {
  byId("source").value = "";
  state.chosen.clear();
  translateNow();
  byId("source").focus();
}

async function copy() {
  const text = state.lines.map(textOf).join("\n");
  try {
    await navigator.clipboard.writeText(text);
    byId("copy").textContent = "Copied";
  } catch {
    byId("copy").textContent = "Not allowed";
  }
  setTimeout(() => (byId("copy").textContent = "Copy"), 1500);
}

function keys(event) {
  const isCommand = event.ctrlKey || event.metaKey;
  if (isCommand && event.key === "Enter") {
    event.preventDefault();
    if (event.shiftKey) copy();
    else translateNow();
  } else if (event.key === "Escape") clear();
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    const buttons = [...byId("alternatives").querySelectorAll("button")];
    const place = buttons.indexOf(document.activeElement);
    if (place < 0) return;
    event.preventDefault();
    buttons.at((place + (event.key === "ArrowDown" ? 1 : -1)) % buttons.length).focus();
  }
}

function followCaret() {
  const { value, selectionStart } = byId("source");
  select(value.slice(0, selectionStart).split("\n").length - 1);
}

function begin() {
  keepTheme(byId("theme"));
  takeToken();
  byId("source").addEventListener("input", () => translateSoon());
  for (const event of ["keyup", "click"]) byId("source").addEventListener(event, followCaret);
  byId("clear").addEventListener("click", clear);
  byId("copy").addEventListener("click", copy);
  byId("file-stop").addEventListener("click", () => state.file?.abort());
  byId("pick").addEventListener("change", (event) => event.target.files[0] && translateFile(event.target.files[0]));
  byId("entry").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", byId("token").value);
    introduce();
  });
  byId("options").addEventListener("input", (event) => {
    const shown = document.querySelector(`output[for="${event.target.id}"]`);
    if (shown) shown.value = event.target.value;
    if (byId("beam").valueAsNumber < byId("n-best").valueAsNumber) setRange("beam", byId("n-best").value);
    byId("temperature").disabled = !byId("sample").checked;
    byId("beam").disabled = byId("length-penalty").disabled = byId("sample").checked;
    if (event.target.id !== "pick") translateSoon();
  });
  document.addEventListener("keydown", keys);
  takeDrops(byId("drop"), ([file]) => file && translateFile(file));
  introduce();
}

begin();
