// Each selected run has a colour, which it keeps as long as it is selected.

const LIGHT = ["#3566d6", "#d9622b", "#2a8f58", "#b0429d", "#8a6d1d", "#1b8ea5", "#d13b53", "#7257d3", "#65762f", "#5f6b7d"];
const DARK = ["#7fa2f5", "#f19363", "#63c792", "#dd86cd", "#d5b24f", "#5fc6da", "#f2808f", "#ab97f3", "#adc06c", "#a7b3c6"];
const given = new Map();

export const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

export function keepColours(keys) {
  for (const key of [...given.keys()]) if (!keys.includes(key)) given.delete(key);
  for (const key of keys) {
    if (given.has(key)) continue;
    const used = new Set(given.values());
    let number = 0;
    while (used.has(number)) number += 1;
    given.set(key, number);
  }
}

export const colourOf = (key) => numbered(given.get(key) ?? 0);

// After the first ten come the same, nearer to the ink, and then nearer to the ground.
export function numbered(number) {
  const colour = (isDark() ? DARK : LIGHT)[number % LIGHT.length];
  const round = Math.floor(number / LIGHT.length) % 3;
  return round ? blend(colour, (round === 1) === isDark() ? 255 : 0, round === 1 ? 0.45 : 0.3) : colour;
}

function blend(colour, towards, share) {
  const parts = [1, 3, 5].map((place) => Number.parseInt(colour.slice(place, place + 2), 16));
  return `#${parts.map((part) => Math.round(part + share * (towards - part)).toString(16).padStart(2, "0")).join("")}`;
}

export const inPage = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
