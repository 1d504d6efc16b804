// Follows the server: fetches the data again when it changes, and keeps what the reader has chosen.

const QUIET = 2500; // ms without a movement after which figures under the pointer are replaced too
const RETRY = 2000; // ms
const FOCUSABLE = "button, input, select, summary, [tabindex]";
const line = el("p", { class: "live soft", role: "status" }, "connecting…");
const clock = (time = new Date()) =>
  time.toDateString() === new Date().toDateString() ? time.toLocaleTimeString() : time.toLocaleString();
let shown = null, wanted = false, busy = false, pressed = false, moved = 0;

document.getElementById("page").prepend(line);
document.querySelector("footer").textContent = `homophily ${DATA.version}. This page follows the folder; it cannot change it.`;
addEventListener("pointerdown", () => { pressed = true; });
addEventListener("pointerup", () => { pressed = false; });
addEventListener("pointercancel", () => { pressed = false; });
for (const kind of ["pointermove", "keydown"]) addEventListener(kind, () => { moved = performance.now(); });

function say(text, lost) {
  if (line.textContent !== text) line.textContent = text;
  line.classList.toggle("lost", Boolean(lost));
}

// While the reader holds a control or reads values in a figure, the figures stay.
const reading = () => pressed || (performance.now() - moved < QUIET && document.querySelector(".tip:not([hidden])") !== null);

const parts = () => [document.querySelector("header"), ...document.querySelectorAll(".slider, .tabs, [data-figure]")].filter(Boolean);
const nameOfPart = (part) => part.dataset.figure || part.className || part.tagName;

const roundsOf = (range) => range.dataset.rounds.split(" ");

// Whoever looks at the last rounds of a timeline goes on to see the last rounds.
const atEnd = (node) => node.classList.contains("newest") && node.scrollLeft + node.clientWidth >= node.scrollWidth - 1;
const placeIn = (node) => (atEnd(node) ? node.scrollWidth * 2 : node.scrollLeft);

function chosen() {
  const found = { left: scrollX, top: scrollY, parts: new Map(), focus: null };
  for (const part of parts()) {
    const range = part.querySelector("input[type=range]"), box = part.querySelector("input[type=checkbox]");
    found.parts.set(nameOfPart(part), {
      open: Array.from(part.querySelectorAll("details"), (node) => node.open),
      options: Array.from(part.querySelectorAll("select"), (node) => node.selectedOptions[0].textContent),
      hidden: Array.from(part.querySelectorAll("[aria-pressed=false]"), (node) => node.textContent),
      scrolled: Array.from(part.querySelectorAll(".scroll"), (node) => [placeIn(node), node.scrollTop]),
      round: range && range.value !== range.max ? roundsOf(range)[range.value] : null,
      adding: box !== null && box.checked,
    });
    if (part.contains(document.activeElement)) {
      found.focus = [nameOfPart(part), Array.from(part.querySelectorAll(FOCUSABLE)).indexOf(document.activeElement)];
    }
  }
  return found;
}

function choose(before) {
  for (const part of parts()) {
    const was = before.parts.get(nameOfPart(part));
    if (!was) continue;
    part.querySelectorAll("details").forEach((node, i) => { node.open = was.open[i] === true; });
    part.querySelectorAll("select").forEach((node, i) => {
      const place = Array.from(node.options).findIndex((option) => option.textContent === was.options[i]);
      if (place > 0) {
        node.selectedIndex = place;
        node.dispatchEvent(new Event("change"));
      }
    });
    for (const node of part.querySelectorAll("[aria-pressed=true]")) if (was.hidden.includes(node.textContent)) node.click();
    part.querySelectorAll(".scroll").forEach((node, i) => { if (was.scrolled[i]) node.scrollTo(...was.scrolled[i]); });
    const range = part.querySelector("input[type=range]"), box = part.querySelector("input[type=checkbox]");
    if (box) box.checked = was.adding;
    if (range && (was.round !== null || was.adding)) {
      const place = roundsOf(range).indexOf(was.round);
      range.value = place < 0 ? range.max : place;
      range.dispatchEvent(new Event("input"));
    }
    if (before.focus && before.focus[0] === nameOfPart(part)) {
      const node = part.querySelectorAll(FOCUSABLE)[before.focus[1]];
      if (node) node.focus({ preventScroll: true });
    }
  }
  scrollTo(before.left, before.top);
}

async function refresh() {
  if (busy || !wanted) return;
  if (reading()) {
    setTimeout(refresh, 300);
    return;
  }
  busy = true;
  try {
    const answer = await fetch("data", { cache: "no-cache" });
    if (!answer.ok) throw new Error(answer.status === 401 ? "the server asks for a token: open the address that it prints" : `the server answers ${answer.status}`);
    const version = answer.headers.get("ETag"), data = version === shown ? null : await answer.json();
    if (reading()) return;
    wanted = false;
    if (data) {
      const before = chosen();
      PAGE.replace(data);
      choose(before);
      shown = version;
    }
    const changed = answer.headers.get("Last-Modified");
    say(`following this folder${changed ? `; last change ${clock(new Date(changed))}` : ""}`);
  } catch (error) {
    say(`connection lost at ${clock()}: ${error.message}; trying again`, true);
  } finally {
    busy = false;
    if (wanted) setTimeout(refresh, RETRY);
  }
}

function follow() {
  const events = new EventSource("events");
  const change = () => { wanted = true; refresh(); };
  let ended = false;
  events.addEventListener("open", change);
  events.addEventListener("changed", change);
  events.addEventListener("ended", () => {
    ended = true;
    events.close();
    say(`the run has ended at ${clock()}, and its server with it; this page shows its last state`);
  });
  events.addEventListener("error", () => {
    if (ended) return;
    say(`connection lost at ${clock()}; trying again`, true);
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, RETRY); // the browser itself tries only after network errors
  });
}

follow();
