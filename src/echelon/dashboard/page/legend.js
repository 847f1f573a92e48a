// The selected runs: one legend for all charts, in which runs are hidden, pinned and let go.

import { colourOf } from "./colours.js";
import { byId, make } from "./dom.js";
import { toggle, view } from "./view.js";

export function drawLegend(rows) {
  const focused = document.activeElement?.closest?.("#legend [data-key]")?.dataset.key;
  byId("legend").replaceChildren(...rows.map(drawEntry));
  if (focused) byId("legend").querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

function drawEntry(row) {
  const isHidden = view.hidden.includes(row.id);
  const isPinned = view.pinned.includes(row.id);
  return make("span", { class: "entry" },
    make("button", {
      type: "button", class: "who", "data-key": `who ${row.id}`, "aria-pressed": String(!isHidden),
      title: isHidden ? "show its curves" : "hide its curves", onclick: () => toggle("hidden", row.id),
    }, make("span", { class: "swatch", "--colour": colourOf(row.id) }), make("span", { class: "cut" }, row.name)),
    make("button", {
      type: "button", class: "pin", "data-key": `pin ${row.id}`, "aria-pressed": String(isPinned),
      "aria-label": `pin ${row.name}`, title: "pin: drawn bold, on top of the list, kept by Select none", onclick: () => toggle("pinned", row.id),
    }, isPinned ? "★" : "☆"),
    make("button", { type: "button", "data-key": `drop ${row.id}`, "aria-label": `let go of ${row.name}`, onclick: () => toggle("run", row.id) }, "×"));
}
