// The page of `echelon serve` for a classifier: drop, choose or paste pictures, and see what they are taken for.

import { keepTheme, takeDrops, takeToken, token } from "./theme.js";

const byId = (id) => document.getElementById(id);
const SHOWN_CLASSES = 5;
const KEPT_PICTURES = 60;
const PREVIEW = 168;
let model = null;

// --- talking to the server ---

async function ask(path, options = {}) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  const answer = await fetch(path, { ...options, headers });
  const content = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (answer.ok) return content;
  throw Object.assign(new Error(content.error), {
    status: answer.status,
    again: Number(answer.headers.get("Retry-After")),
  });
}

async function askPatiently(path, options) {
  for (;;) {
    try {
      return await ask(path, options);
    } catch (error) {
      if (!error.again) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000 * error.again));
    }
  }
}

async function introduce() {
  byId("entry").hidden = true;
  try {
    model = await ask("v1/model");
    byId("model").textContent = `${model.name} · ${model.classes.length} classes · ${model.engine}, ${model.precision}`;
    byId("classes").textContent = model.classes.join(", ");
    byId("curl").textContent = `curl ${location.origin}/v1/classify --data-binary @picture.jpg`;
    complain("");
  } catch (error) {
    byId("model").textContent = "no model";
    if (error.status === 401) byId("entry").hidden = false;
    else complain(`The server cannot be reached: ${error.message}`);
  }
}

function complain(message) {
  byId("problem").textContent = message;
  byId("problem").hidden = !message;
}

// --- pictures ---

function element(kind, name, text = "") {
  const made = document.createElement(kind);
  made.className = name;
  made.textContent = text;
  return made;
}

async function classify(files) {
  for (const file of files) await classifyOne(file);
}

async function classifyOne(file) {
  const card = element("article", "card picture");
  const canvas = card.appendChild(element("canvas", "preview"));
  const side = card.appendChild(element("div", "guesses"));
  side.append(element("h2", "", file.name || "pasted picture"), element("p", "faint", "looking …"));
  byId("pictures").prepend(card);
  while (byId("pictures").children.length > KEPT_PICTURES) byId("pictures").lastChild.remove();
  draw(file, canvas);
  try {
    if (model && file.size > model.bytes) throw new Error(`more than ${Math.round(model.bytes / 2 ** 20)} MB`);
    const answer = await askPatiently(`v1/classify?top=${SHOWN_CLASSES}`, { method: "POST", body: file });
    const list = element("ol", "bars");
    list.append(...answer.classes.map(bar));
    side.lastChild.replaceWith(list);
    canvas.setAttribute("aria-label", answer.classes[0].class);
  } catch (error) {
    if (error.status === 401) introduce();
    side.lastChild.replaceWith(element("p", "problem", error.message));
  }
}

function bar(guess) {
  const item = element("li", "");
  const percent = 100 * guess.probability;
  item.append(element("span", "", guess.class), element("span", "score", `${percent.toFixed(percent < 10 ? 1 : 0)}%`));
  const gauge = item.appendChild(element("span", "gauge"));
  gauge.appendChild(document.createElement("i")).style.width = `${percent}%`;
  return item;
}

async function draw(file, canvas) {
  canvas.setAttribute("role", "img");
  try {
    const picture = await createImageBitmap(file);
    const scale = PREVIEW / Math.max(picture.width, picture.height);
    canvas.width = Math.max(1, Math.round(picture.width * scale));
    canvas.height = Math.max(1, Math.round(picture.height * scale));
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = scale < 1;
    pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  } catch {
    canvas.width = canvas.height = 0; // no kind that this browser shows; the server may still know it
  }
}

// --- hands ---

function begin() {
  keepTheme(byId("theme"));
  takeToken();
  byId("pick").addEventListener("change", (event) => {
    classify([...event.target.files]);
    event.target.value = "";
  });
  byId("entry").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", byId("token").value);
    introduce();
  });
  document.addEventListener("paste", (event) => classify([...event.clipboardData.files]));
  takeDrops(byId("drop"), classify);
  introduce();
}

begin();
