// Keeps the page up to date: the server says when something has changed, and the parts that differ are replaced.
async function refresh() {
  const answer = await fetch("sections", { credentials: "same-origin" });
  if (!answer.ok) return;
  const sections = await answer.json();
  for (const [id, content] of Object.entries(sections)) {
    const place = document.getElementById(id);
    if (isShown(place, content)) continue;
    const open = new Set([...place.querySelectorAll("details[open]")].map(keyOf));
    const focused = place.contains(document.activeElement) ? keyOf(document.activeElement) : null;
    place.innerHTML = content;
    for (const details of place.querySelectorAll("details")) {
      if (open.has(keyOf(details))) details.open = true;
      if (focused !== null && focused === keyOf(details)) details.querySelector("summary").focus();
    }
  }
}

// Whether a part shows this already, whatever the reader has opened in it.
function isShown(place, content) {
  const other = document.createElement("template");
  other.innerHTML = content;
  return other.innerHTML === place.innerHTML.replaceAll(' open=""', "");
}

// Which answer an element belongs to.
function keyOf(element) {
  const article = element.closest("article");
  return article ? article.id : null;
}

const events = new EventSource("events");
events.onmessage = refresh;
events.addEventListener("over", () => { events.close(); refresh(); });
events.onerror = () => {
  const state = document.querySelector(".state");
  if (state && events.readyState !== EventSource.CLOSED) state.textContent = "no connection to echelon watch";
};
events.onopen = refresh;
