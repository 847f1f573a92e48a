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

export const numbered = (number) => (isDark() ? DARK : LIGHT)[number % LIGHT.length];

export const inPage = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
