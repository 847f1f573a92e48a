// What the reader has chosen. The address has all of it, so a page can be sent to somebody, reloaded and gone back to.

const LISTS = ["run", "hidden", "pinned", "log", "wide", "column", "y"];
const DEFAULTS = {
  x: "step", smooth: "auto", group: "", drag: "zoom", events: "on", search: "", state: "", sort: "-last_change", zoom: "",
  tab: "recipe", show: "runs", study: "", by: "", against: "", asked: "",
};
const listeners = [];

export const view = read();

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = {};
  for (const name of LISTS) found[name] = given.getAll(name);
  for (const [name, usual] of Object.entries(DEFAULTS)) found[name] = given.get(name) ?? usual;
  return found;
}

export function onChange(listener) {
  listeners.push(listener);
}

export function change(changes) {
  Object.assign(view, changes);
  const pairs = LISTS.flatMap((name) => view[name].map((value) => [name, value]));
  for (const [name, usual] of Object.entries(DEFAULTS)) if (view[name] !== usual) pairs.push([name, view[name]]);
  history.replaceState(null, "", `${location.pathname}#${new URLSearchParams(pairs)}`);
  for (const listener of listeners) listener(Object.keys(changes));
}

export function toggle(list, value) {
  const has = view[list].includes(value);
  change({ [list]: has ? view[list].filter((each) => each !== value) : [...view[list], value] });
}

// Somebody has changed the address by hand, or gone back.
addEventListener("hashchange", () => {
  const found = read();
  const changed = Object.keys(found).filter((name) => String(found[name]) !== String(view[name]));
  if (changed.length) change(found);
});
