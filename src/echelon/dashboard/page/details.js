// What there is to say about the selected runs beside their curves.

import { ask, describe, tell } from "./ask.js";
import { byId, make, makeTable } from "./dom.js";
import { duration, whole } from "./format.js";
import { change, view } from "./view.js";
import { markDifferences } from "./words.js";

const TABS = {
  recipe: ["Recipes", showRecipes], samples: ["Samples", showSamples], confusion: ["Confusion", showConfusion],
  verdict: ["Difference", showVerdict], answers: ["Answers", showAnswers], events: ["Events", showEvents], hosts: ["Hosts", showHosts], notes: ["Tags and notes", showNotes],
};
const MOST_STEPS = 6;
let shown = "";

export async function drawDetails(rows) {
  drawTabs();
  const place = byId("tab");
  const isWriting = view.tab === "notes" && place.contains(document.activeElement) && shown.startsWith("notes");
  const key = view.tab + JSON.stringify(rows.map((row) => [row.id, row.step, row.state, row.is_partial]));
  if (key === shown || isWriting) return;
  shown = key;
  place.setAttribute("aria-labelledby", `tab-${view.tab}`);
  const name = TABS[view.tab] ? view.tab : "recipe";
  try {
    const content = await TABS[name][1](rows);
    if (shown === key) place.replaceChildren(...content);
  } catch (error) {
    if (shown === key) place.replaceChildren(make("p", { class: "problem" }, error.message));
  }
}

function drawTabs() {
  const names = Object.keys(TABS);
  const tabs = names.map((name) => make("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(view.tab === name), "aria-controls": "tab",
    tabIndex: view.tab === name ? 0 : -1, onclick: () => change({ tab: name }),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      change({ tab: names.at((names.indexOf(name) + step) % names.length) });
      byId(`tab-${view.tab}`).focus();
    },
  }, TABS[name][0]));
  const hadFocus = byId("tabs").contains(document.activeElement);
  byId("tabs").replaceChildren(...tabs);
  if (hadFocus) byId(`tab-${view.tab}`)?.focus();
}

async function showRecipes(rows) {
  const recipes = (await Promise.all(rows.map(describe))).map((each) => each.recipe);
  const keys = [...new Set(recipes.flatMap(Object.keys))].sort();
  const varied = keys.filter((key) => new Set(recipes.map((recipe) => recipe[key])).size > 1);
  const table = (wanted) => makeTable(["", ...rows.map((row) => row.name)], wanted.map((key) => [key, ...recipes.map((recipe) => recipe[key] ?? "")]));
  const every = make("details", { ontoggle: () => every.open && every.append(table(keys)) }, make("summary", {}, "All settings"));
  const first = rows.length > 1 ? [make("p", { class: "faint" }, varied.length ? "Settings that differ:" : "The recipes are the same."), ...(varied.length ? [table(varied)] : [])] : [];
  if (rows.length === 1) every.open = true;
  return [...first, every];
}

async function showSamples(rows) {
  const described = await Promise.all(rows.map(describe));
  const sources = [...new Set(described.flatMap((each) => Object.keys(each.samples)))];
  if (!sources.length) return [make("p", { class: "faint" }, "These runs have recorded no samples.")];
  return sources.flatMap((source) => {
    const own = described.map((each) => each.samples[source] || []);
    const steps = spread([...new Set(own.flat().map((sample) => sample.step))].sort((a, b) => a - b));
    const reference = own.flat().at(-1)?.reference ?? "";
    const rowsOf = steps.map((step) => [`step ${whole(step)}`, ...own.map((samples) => {
      const sample = samples.filter((each) => each.step <= step).at(-1);
      return sample ? markDifferences(sample.output, reference) : "";
    })]);
    return [make("h3", {}, source), makeTable(["", ...rows.map((row) => row.name)], [...rowsOf, ["meant", ...rows.map(() => reference)]], "texts")];
  });
}

function spread(entries) {
  if (entries.length <= MOST_STEPS) return entries;
  return Array.from({ length: MOST_STEPS }, (_, number) => entries[Math.round((number * (entries.length - 1)) / (MOST_STEPS - 1))]);
}

async function showConfusion(rows) {
  const described = await Promise.all(rows.map(describe));
  const found = rows.map((row, number) => [row, described[number].confusion]).filter(([, confusion]) => confusion);
  if (!found.length) return [make("p", { class: "faint" }, "Only image classifiers that were scored have a confusion matrix.")];
  return [make("div", { class: "matrices" }, ...found.map(([row, { names, counts, source }]) => make("article", {}, make("h3", {}, row.name),
    make("p", { class: "faint" }, `${source}; rows: what images show; columns: what they were taken for`),
    make("div", { class: "scroll", tabIndex: 0 }, make("table", { class: "confusion" },
      make("thead", {}, make("tr", {}, make("th"), ...names.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...counts.map((line, index) => {
        const total = line.reduce((a, b) => a + b, 0) || 1;
        return make("tr", {}, make("th", { scope: "row" }, names[index]), ...line.map((images, column) =>
          make("td", { "--weight": images / total, class: index === column ? "right" : "", title: `${names[index]} taken for ${names[column]}: ${images}` }, images ? String(images) : "")));
      })))))))];
}

// Whether the scores of the selected runs differ from those of one of them by more than chance.
async function showVerdict(rows) {
  if (rows.length < 2) return [make("p", { class: "faint" }, "Select two runs or more to see whether their test scores differ by more than chance. Runs that differ only in the seed are compared as one.")];
  const place = make("div", { class: "verdict", "aria-live": "polite" });
  const choose = make("select", { onchange: () => { change({ against: choose.value }); fill(); } }, ...rows.map((row) => make("option", { value: row.id }, row.name)));
  choose.value = rows.some((row) => row.id === view.against) ? view.against : rows[0].id;
  async function fill() {
    place.replaceChildren(make("p", { class: "faint" }, "comparing …"));
    const order = [choose.value, ...rows.map((row) => row.id).filter((id) => id !== choose.value)];
    try {
      const found = await ask("api/verdict", order.map((id) => ["run", id]));
      const said = found.problem ? [found.problem, "`echelon compare` scores runs whose outputs were not kept."] : found.sentences;
      const conclusions = (found.comparisons ?? []).map((each) => each.conclusion);
      const paragraphs = said.map((sentence) => make("p", { class: conclusions.includes(sentence) ? "conclusion" : "" }, sentence));
      place.replaceChildren(...(found.table ? [makeTable(found.table[0], found.table.slice(1))] : []), ...paragraphs);
    } catch (error) {
      place.replaceChildren(make("p", { class: "problem" }, error.message));
    }
  }
  fill();
  return [make("p", {}, make("label", { class: "choice" }, "Compared with ", choose)), place];
}

async function showAnswers(rows) {
  const place = make("div", { class: "answers", "aria-live": "polite" });
  const choose = make("select", { "aria-label": "run", onchange: () => { change({ asked: choose.value }); fill(choose.value); } }, ...rows.map((row) => make("option", { value: row.id }, row.name)));
  choose.value = rows.some((row) => row.id === view.asked) ? view.asked : rows[0].id;
  async function fill(run) {
    place.replaceChildren(make("p", { class: "faint" }, "reading the whole run …"));
    try {
      const answers = Object.values(await ask("api/answers", [["run", run]]));
      place.replaceChildren(...answers.map((each) => make("article", {}, make("h3", {}, each.question), make("p", {}, each.answer),
        each.evidence?.length ? make("details", {}, make("summary", {}, "evidence"), make("ul", {}, ...each.evidence.map((line) => make("li", {}, line)))) : null)));
    } catch (error) {
      place.replaceChildren(make("p", { class: "problem" }, error.message));
    }
  }
  fill(choose.value);
  return [make("p", {}, choose), place];
}

async function showEvents(rows) {
  const described = await Promise.all(rows.map(describe));
  const events = rows.flatMap((row, number) => described[number].events.map((event) => ({ ...event, run: row.name })));
  events.sort((a, b) => (b.time || 0) - (a.time || 0));
  const lines = events.slice(0, 300).map((event) => [event.run, event.time ? new Date(1000 * event.time).toLocaleString() : "", duration(event.seconds), whole(event.step), event.text]);
  return [lines.length ? makeTable(["run", "when", "after", "step", ""], lines, "texts") : make("p", { class: "faint" }, "Nothing has happened.")];
}

async function showHosts(rows) {
  const described = await Promise.all(rows.map(describe));
  const found = rows.flatMap((row, number) => (described[number].hosts.rows.length
    ? [make("h3", {}, row.name), makeTable(described[number].hosts.heading, described[number].hosts.rows)] : []));
  return found.length ? found : [make("p", { class: "faint" }, "No host was sampled.")];
}

function showNotes(rows) {
  return rows.map((row) => {
    const tags = make("input", { type: "text", value: row.tags.join(", "), "aria-label": `tags of ${row.name}`, placeholder: "tags, separated by commas" });
    const note = make("textarea", { value: row.note, "aria-label": `note on ${row.name}`, placeholder: "a note" });
    const said = make("span", { class: "faint", role: "status" });
    const submit = async (event) => {
      event.preventDefault();
      try {
        await tell("api/notes", { run: row.id, tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean), note: note.value });
        said.textContent = "saved in the run's folder";
      } catch (error) {
        said.textContent = error.message;
      }
    };
    return make("form", { class: "note-form", onsubmit: submit }, make("h3", {}, row.name), tags, note, make("div", {}, make("button", { class: "button", type: "submit" }, "Save"), " ", said));
  });
}
