// Numbers, times and names for people.

const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

export function count(value) {
  if (value === null || value === undefined) return "";
  const found = UNITS.find(([size]) => Math.abs(value) >= 10 * size) || UNITS.find(([size]) => size > 1e3 && Math.abs(value) >= size);
  return found ? `${trim(value / found[0])}${found[1]}` : trim(value);
}

export const trim = (value) => (value === null || value === undefined ? "" : String(Number(Number(value).toPrecision(4))));

export const whole = (value) => (value === null || value === undefined ? "" : value.toLocaleString("en"));

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const ago = (moment) => (moment ? `${duration(Math.max(0, Date.now() / 1000 - moment))} ago` : "");

// plotly reads names and labels as HTML; this makes it show them as they are.
export const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

const CURVES = {
  loss: "training", "valid/loss": "validation", received: "received", sent: "sent",
};

export function curveLabel(name) {
  if (name in CURVES) return CURVES[name];
  return name.includes("/") && !name.startsWith("valid/") ? name.slice(name.indexOf("/") + 1) : "";
}

// A cell of a CSV file; spreadsheets must not take a name for a formula.
export function cell(value) {
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return `"${text.replaceAll('"', '""')}"`;
}
