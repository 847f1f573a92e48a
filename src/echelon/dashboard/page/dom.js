// Elements, made without HTML: whatever a run's files say is text, and only ever becomes text.

export const byId = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export function makeTable(heading, rows, kind = "plain") {
  return make("div", { class: "scroll", tabIndex: 0 },
    make("table", { class: kind },
      make("thead", {}, make("tr", {}, ...heading.map((cell) => make("th", { scope: "col" }, cell)))),
      make("tbody", {}, ...rows.map(([first, ...cells]) =>
        make("tr", {}, make("th", { scope: "row" }, first), ...cells.map((cell) => make("td", {}, cell)))))));
}

// Offer text or an image as a file.
export function save(name, address) {
  make("a", { href: address, download: name }).click();
}
