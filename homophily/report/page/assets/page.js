// The page: folders, tabs, the slider over rounds, and tables.

const DATA = JSON.parse(document.getElementById("data").textContent);
const KINDS = { lines, intervals, bars, points, matrix, graph, histogram, timeline, table, absent };
const STATES = { finished: "finished", running: "running", stopped: "stopped before its end", waiting: "not begun", unreadable: "cannot be shown" };
let counter = 0;

function grid(headings, rows, label) {
  const numeric = headings.map((_, i) => i > 0 && rows.every((row) => /^[-+−<\s\d.,e±%]*( to [-+−\d.,e]+)?$/.test(row[i])));
  const cell = (tag, text, i, more) => el(tag, { class: numeric[i] ? "number" : null, ...more }, text);
  const head = el("tr", {}, ...headings.map((text, i) => cell("th", text, i, { scope: "col" })));
  const body = rows.map((row) => el("tr", {}, ...row.map((text, i) => (i ? cell("td", text, i) : cell("th", text, i, { scope: "row" })))));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
}

function table(figure, card) {
  card.classList.add("wide");
  card.append(grid(figure.headings, figure.rows, figure.title));
  const names = Object.keys(figure.texts);
  if (names.length) {
    const said = el("span", { role: "status", class: "soft" });
    const area = el("textarea", { readonly: true, hidden: true, rows: 6, "aria-label": "the table as text" });
    const copy = async (name) => {
      area.value = figure.texts[name];
      area.hidden = false;
      area.select();
      try {
        await navigator.clipboard.writeText(figure.texts[name]);
        said.textContent = `copied as ${name}`;
      } catch {
        said.textContent = "select the text and copy it";
      }
    };
    const buttons = names.map((name) => el("button", { type: "button", class: "copy", onclick: () => copy(name) }, name));
    card.append(el("p", { class: "copies" }, "Copy as ", ...buttons, said), area);
  }
  return { draw() {} };
}

function absent(figure, card) {
  card.classList.add("absent");
  return { draw() {} };
}

function panel(view, tab) {
  const shared = {}, parts = [], cards = [];
  for (const figure of tab.figures) {
    const card = el("section", { class: "card", id: `${figure.id}-${++counter}`, "data-figure": figure.id });
    const why = figure.kind === "absent" ? `Not shown: ${figure.text}.` : figure.text;
    card.append(el("h2", {}, figure.title), el("p", { class: "text" }, why));
    cards.push(card);
    parts.push(KINDS[figure.kind](figure, card, view, shared));
  }
  const node = el("div", { class: "cards" }, ...cards);
  const controls = tab.rounds.length > 1 ? slider(tab, parts) : "";
  return { node: el("div", {}, controls, node), draw: () => parts.forEach((part) => part.draw()) };
}

// One slider for all figures of a tab that follow the round.
function slider(tab, parts) {
  const rounds = tab.rounds, shown = el("output", {});
  const input = el("input", { type: "range", min: 0, max: rounds.length - 1, value: rounds.length - 1, step: 1, "data-rounds": rounds.join(" ") });
  const sum = el("input", { type: "checkbox" });
  let waiting = false;
  function update() {
    const place = Number(input.value);
    shown.textContent = `round ${rounds[place]}`;
    input.setAttribute("aria-valuetext", shown.textContent);
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const now = Number(input.value);
      for (const part of parts) if (part.follow) part.follow({ place: now, round: rounds[now], adding: sum.checked });
    });
  }
  input.addEventListener("input", update);
  sum.addEventListener("change", update);
  shown.textContent = `round ${rounds[rounds.length - 1]}`;
  const adding = tab.adds ? el("label", {}, sum, " matrix: add up all shown rounds so far") : "";
  return el("div", { class: "slider" }, el("label", {}, "Round ", input), shown, adding);
}

function tabs(view) {
  const list = el("div", { class: "tabs", role: "tablist", "aria-label": "parts of the report" });
  const place = el("div", { role: "tabpanel", tabindex: -1 });
  const made = new Map();
  let present = null;
  const buttons = view.tabs.map((tab, i) => el("button", {
    type: "button", role: "tab", id: `tab-${++counter}`, onclick: () => open(i),
    onkeydown(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -i, End: view.tabs.length - 1 - i }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const next = (i + step + buttons.length) % buttons.length;
      open(next);
      buttons[next].focus();
    },
  }, tab.name));
  function open(i) {
    buttons.forEach((button, j) => {
      button.setAttribute("aria-selected", String(i === j));
      button.tabIndex = i === j ? 0 : -1;
    });
    if (!made.has(i)) made.set(i, panel(view, view.tabs[i]));
    present = made.get(i);
    place.setAttribute("aria-labelledby", buttons[i].id);
    place.replaceChildren(present.node);
    present.draw();
  }
  list.append(...buttons);
  const chosen = () => buttons.findIndex((button) => button.tabIndex === 0);
  return { nodes: [list, place], open, chosen, redraw: () => present.draw() };
}

function show(view) {
  const parts = tabs(view);
  const facts = view.facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  const notes = view.notes.map((note) => el("li", {}, note));
  const head = el("header", {},
    el("h1", {}, view.title),
    el("p", { class: "path" }, view.name, " ", el("span", { class: `state ${view.state}` }, STATES[view.state])),
    el("dl", { class: "facts" }, ...facts),
    notes.length ? el("ul", { class: "notes" }, ...notes) : null,
  );
  return { node: el("article", {}, head, ...parts.nodes), parts };
}

function start() {
  const page = document.getElementById("page"), place = el("div", {});
  let present = null, views = DATA.views, at = 0;
  const open = (i, tab = 0) => {
    at = i;
    present = show(views[i]);
    place.replaceChildren(present.node);
    present.parts.open(tab);
  };
  // Shows other data of the same folders; the chosen tab stays.
  const replace = (data) => {
    const tab = present.parts.chosen();
    views = data.views;
    open(at, Math.min(tab, views[at].tabs.length - 1));
  };
  if (DATA.views.length > 1) {
    const choice = el("select", { onchange: (event) => open(Number(event.target.value)) }, ...DATA.views.map((view, i) => el("option", { value: i }, `${view.name}: ${view.title}`)));
    page.append(el("nav", {}, el("label", { class: "field" }, "Folder ", choice)));
  }
  page.append(place, el("footer", { class: "soft" }, `homophily ${DATA.version}. This file holds all of its data and loads nothing.`));
  open(0);
  let width = page.clientWidth;
  new ResizeObserver(() => {
    if (page.clientWidth === width || !page.clientWidth) return;
    width = page.clientWidth;
    present.parts.redraw();
  }).observe(page);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => present.parts.redraw());
  return { replace };
}

const PAGE = start();
