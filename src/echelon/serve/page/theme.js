// Light and dark, the token, and files that are dropped: what every page of `echelon serve` shares.

export function token() {
  return sessionStorage.getItem("token") || "";
}

export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname);
}

export function keepTheme(button) {
  const root = document.documentElement;
  const kept = localStorage.getItem("theme");
  if (kept) root.dataset.theme = kept;
  button.addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
  });
}

// Hand files that are dropped anywhere to `take`; `sign` is shown while they are held over the page.
export function takeDrops(sign, take) {
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    sign.hidden = false;
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) sign.hidden = true;
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    sign.hidden = true;
    take([...event.dataTransfer.files]);
  });
}
