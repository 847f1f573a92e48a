// Words of a text that another one does not have in the same order.

import { make } from "./dom.js";

const MOST_WORDS = 200;

export function markDifferences(text, reference) {
  const words = text.split(/\s+/).filter(Boolean);
  const others = reference.split(/\s+/).filter(Boolean);
  if (!others.length || words.length > MOST_WORDS || others.length > MOST_WORDS) return text;
  const same = inCommon(words, others);
  const parts = words.flatMap((word, number) => [same.has(number) ? word : make("mark", {}, word), " "]);
  return make("span", {}, ...parts);
}

// Places of the words of the longest common subsequence.
function inCommon(words, others) {
  const lengths = Array.from({ length: words.length + 1 }, () => new Uint16Array(others.length + 1));
  for (let i = words.length - 1; i >= 0; i -= 1) {
    for (let j = others.length - 1; j >= 0; j -= 1) {
      lengths[i][j] = words[i] === others[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const found = new Set();
  for (let i = 0, j = 0; i < words.length && j < others.length;) {
    if (words[i] === others[j]) {
      found.add(i);
      i += 1;
      j += 1;
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i += 1;
    else j += 1;
  }
  return found;
}
