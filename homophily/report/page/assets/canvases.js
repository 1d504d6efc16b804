// Figures drawn on canvases: they stay quick with thousands of peers.

const MOST_EDGES = 20000;
const GRID = 500;
const MARKS = 6;

function canvas(figure, card, square) {
  const box = el("div", { class: square ? "plot square" : "plot" });
  const node = el("canvas", { role: "img", tabindex: 0, "aria-label": `${figure.title}. ${figure.text}` });
  const said = el("p", { class: "said", role: "status" });
  box.append(node);
  const note = tip(box);
  card.append(box, said);
  node.addEventListener("pointerleave", () => note.hide());
  node.addEventListener("blur", () => note.hide());
  function start() {
    const width = box.clientWidth, height = box.clientHeight, scale = window.devicePixelRatio || 1;
    node.width = Math.round(width * scale);
    node.height = Math.round(height * scale);
    node.style.width = `${width}px`;
    node.style.height = `${height}px`;
    const pen = node.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    return { pen, width, height };
  }
  return { node, note, said, start };
}

// Marks differ in shape, so that they are told apart without colour.
function mark(pen, shape, x, y, size) {
  pen.beginPath();
  const around = (corners, turn) => {
    for (let i = 0; i < corners; i++) {
      const angle = turn + (2 * Math.PI * i) / corners;
      pen.lineTo(x + 1.25 * size * Math.cos(angle), y + 1.25 * size * Math.sin(angle));
    }
    pen.closePath();
  };
  if (shape === 0) pen.arc(x, y, size, 0, 7);
  else if (shape === 1) around(4, Math.PI / 4);
  else if (shape === 2) around(3, -Math.PI / 2);
  else if (shape === 3) around(4, 0);
  else if (shape === 4) around(3, Math.PI / 2);
  else around(5, -Math.PI / 2);
  pen.fill();
}

function key(names, draws) {
  return names.length < 2 ? "" : el("ul", { class: "key" }, ...names.map((name, i) => el("li", {}, draws(i), name)));
}

function dot(index) {
  const circle = svg("circle", { cx: 6, cy: 6, r: 5 });
  circle.style.fill = colour(index);
  return svg("svg", { width: 12, height: 12, "aria-hidden": true }, circle);
}

function shape(index) {
  const node = el("canvas", { width: 12, height: 12, "aria-hidden": true, class: "mark" });
  const pen = node.getContext("2d");
  pen.fillStyle = "#888";
  mark(pen, index % MARKS, 6, 6, 4.4);
  return node;
}

function points(figure, card, view) {
  const peers = unpack(figure.peers, "u4"), xs = unpack(figure.x, "f4"), ys = unpack(figure.y, "f4");
  const colours = unpack(figure.colour, "u2"), marks = unpack(figure.mark, "u2");
  card.append(key(figure.colours, dot), key(figure.marks, shape));
  const { node, note, said, start } = canvas(figure, card, false);
  let at = 0, place = () => [0, 0];
  function draw() {
    const { pen, width, height } = start(), look = theme();
    const [x0, x1] = figure.regions.length ? [0, xs.length + 1] : range(xs, 0.05), [y0, y1] = range(ys, 0.06);
    const levels = ticks(y0, y1, height / 45), texts = tickTexts(levels);
    const edge = { left: 30 + 7 * Math.max(...texts.map((text) => text.length)), right: 14, top: 18, bottom: 40 };
    const x = (value) => edge.left + ((value - x0) / (x1 - x0)) * (width - edge.left - edge.right);
    const y = (value) => height - edge.bottom - ((value - y0) / (y1 - y0)) * (height - edge.top - edge.bottom);
    place = (i) => [x(xs[i]), y(ys[i])];
    for (const [from, to, name] of figure.regions) {
      pen.fillStyle = look.line;
      pen.globalAlpha = 0.5;
      pen.fillRect(x(from), edge.top, x(to) - x(from), height - edge.top - edge.bottom);
      pen.globalAlpha = 1;
      pen.fillStyle = look.soft;
      pen.textAlign = from < x1 / 2 ? "left" : "right";
      pen.fillText(name, from < x1 / 2 ? x(from) : x(to), 12);
    }
    pen.strokeStyle = look.line;
    pen.fillStyle = look.soft;
    levels.forEach((value, i) => {
      pen.beginPath();
      pen.moveTo(edge.left, y(value));
      pen.lineTo(width - edge.right, y(value));
      pen.stroke();
      pen.textAlign = "right";
      pen.fillText(texts[i], edge.left - 6, y(value) + 4);
    });
    pen.textAlign = "center";
    for (const value of ticks(x0, x1, width / 90)) pen.fillText(format(value), x(value), height - edge.bottom + 16);
    pen.fillText(figure.x_label, (edge.left + width) / 2, height - 6);
    pen.save();
    pen.rotate(-Math.PI / 2);
    pen.fillText(figure.y_label, -(edge.top + height - edge.bottom) / 2, 14);
    pen.restore();
    const size = xs.length > 400 ? 2 : 3.4;
    for (let i = 0; i < xs.length; i++) {
      pen.fillStyle = look.of(colours[i]);
      mark(pen, marks[i] % MARKS, x(xs[i]), y(ys[i]), size);
    }
  }
  function show() {
    const [x, y] = place(at);
    const about = [figure.colours.length > 1 ? figure.colours[colours[at]] : "", figure.marks.length > 1 ? figure.marks[marks[at]] : ""];
    note.show(x, y, [nameOf(view, peers[at]), `${figure.y_label} ${format(ys[at])}`, ...about.filter(Boolean)]);
    said.textContent = `${nameOf(view, peers[at])}: ${figure.y_label} ${format(ys[at])}`;
  }
  node.addEventListener("pointermove", (event) => {
    let best = Infinity;
    for (let i = 0; i < xs.length; i++) {
      const [x, y] = place(i), far = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
      if (far < best) [best, at] = [far, i];
    }
    show();
  });
  node.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    at = Math.min(xs.length - 1, Math.max(0, at + step));
    show();
  });
  return { draw };
}

const nameOf = (view, peer) => (view.peers.length ? view.peers[peer] : `peer ${peer}`);

function matrix(figure, card, view, tab) {
  tab.frames = framesOf(figure.frames);
  const { size, frames } = tab.frames;
  const peers = unpack(figure.peers, "u4"), grid = Math.min(size, GRID), sum = new Float32Array(grid * grid);
  const { node, note, said, start } = canvas(figure, card, true);
  let last = { place: frames.length - 1, adding: false }, side = 1, left = 0, top = 0, row = 0, column = 0;
  function collect() {
    sum.fill(0);
    for (let i = last.adding ? 0 : last.place; i <= last.place; i++) {
      const { cells, counts } = frames[i];
      for (let j = 0; j < cells.length; j++) {
        const r = Math.floor(cells[j] / size), c = cells[j] - r * size;
        sum[Math.floor((r * grid) / size) * grid + Math.floor((c * grid) / size)] += counts ? counts[j] : 1;
      }
    }
  }
  function draw() {
    collect();
    const { pen, width, height } = start(), look = theme();
    [left, top] = figure.groups.length > 1 ? [82, 24] : [4, 4];
    side = Math.min(width - left, height - top) - 4;
    const most = sum.reduce((a, b) => Math.max(a, b), 1);
    const image = new ImageData(grid, grid);
    const [red, green, blue] = rgb(pen, look.of(0));
    for (let i = 0; i < sum.length; i++) {
      if (!sum[i]) continue;
      image.data[4 * i] = red;
      image.data[4 * i + 1] = green;
      image.data[4 * i + 2] = blue;
      image.data[4 * i + 3] = 70 + 185 * Math.sqrt(sum[i] / most);
    }
    const small = document.createElement("canvas");
    small.width = small.height = grid;
    small.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = side * (window.devicePixelRatio || 1) < grid;
    pen.drawImage(small, left, top, side, side);
    pen.strokeStyle = look.soft;
    pen.strokeRect(left, top, side, side);
    let first = 0;
    const total = peers.length;
    pen.fillStyle = look.ink;
    for (const [name, count] of figure.groups.length > 1 ? figure.groups : []) {
      const from = (first / total) * side, long = (count / total) * side;
      pen.beginPath();
      pen.moveTo(left + from, top);
      pen.lineTo(left + from, top + side);
      pen.moveTo(left, top + from);
      pen.lineTo(left + side, top + from);
      pen.stroke();
      if (long > 14) {
        pen.textAlign = "right";
        pen.fillText(cut(pen, name, left - 10), left - 6, top + from + long / 2 + 4);
        pen.textAlign = "center";
        pen.fillText(cut(pen, name, long - 4), left + from + long / 2, top - 8);
      }
      first += count;
    }
    const merges = sum.reduce((a, b) => a + b, 0);
    said.textContent = `${merges} merges${merges ? `; the darkest cell has ${most}` : ""}.`;
  }
  function show() {
    const names = (at) => {
      const from = Math.ceil((at * peers.length) / grid), to = Math.ceil(((at + 1) * peers.length) / grid) - 1;
      return to > from ? `${nameOf(view, peers[from])} and ${to - from} more` : nameOf(view, peers[Math.min(from, peers.length - 1)]);
    };
    const text = `${names(row)} merged ${names(column)}: ${sum[row * grid + column]} times`;
    note.show(left + ((column + 0.5) / grid) * side, top + ((row + 0.5) / grid) * side, [text]);
  }
  node.addEventListener("pointermove", (event) => {
    column = Math.floor(((event.offsetX - left) / side) * grid);
    row = Math.floor(((event.offsetY - top) / side) * grid);
    if (row >= 0 && row < grid && column >= 0 && column < grid) show();
    else {
      note.hide();
      row = column = 0;
    }
  });
  node.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    row = Math.min(grid - 1, Math.max(0, row + step[0]));
    column = Math.min(grid - 1, Math.max(0, column + step[1]));
    show();
  });
  return { draw, follow(at) { last = at; draw(); } };
}

function rgb(pen, text) {
  pen.fillStyle = text; // becomes #rrggbb
  return [1, 3, 5].map((i) => parseInt(pen.fillStyle.slice(i, i + 2), 16));
}

function cut(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let kept = text;
  while (kept.length > 1 && pen.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}

function graph(figure, card, view, tab) {
  const own = figure.frames === null ? null : framesOf(figure.frames);
  const peers = unpack(figure.peers, "u4"), xs = unpack(figure.x, "u2"), ys = unpack(figure.y, "u2");
  const colours = unpack(figure.colour, "u2");
  card.append(key(figure.colours, dot));
  const { node, note, said, start } = canvas(figure, card, true);
  let place = null, side = 1, chosen = -1;
  const at = (i) => [(xs[i] / 65535) * side, (ys[i] / 65535) * side];
  function edges() {
    const { size, frames } = own || tab.frames, { cells, counts } = frames[place === null ? frames.length - 1 : place];
    let kept = Array.from(cells.keys());
    if (kept.length > MOST_EDGES) kept = kept.sort((a, b) => (counts ? counts[b] - counts[a] : 0)).slice(0, MOST_EDGES);
    const most = counts ? kept.reduce((best, i) => Math.max(best, counts[i]), 1) : 1;
    return { all: cells.length, found: kept.map((i) => [Math.floor(cells[i] / size), cells[i] % size, counts ? counts[i] / most : 1]) };
  }
  function draw() {
    const { pen, width, height } = start(), look = theme(), { all, found } = edges();
    side = Math.min(width, height);
    const groups = new Map();
    for (const [a, b, weight] of found) {
      if (chosen >= 0 && a !== chosen && b !== chosen) continue;
      const strength = Math.max(1, Math.ceil(weight * 4)), same = colours[a] === colours[b];
      const name = `${same ? colours[a] : -1} ${strength}`;
      if (!groups.has(name)) groups.set(name, { colour: same ? look.of(colours[a]) : look.ink, strength, lines: [] });
      groups.get(name).lines.push(a, b);
    }
    const crowd = Math.min(1, Math.max(0.12, 600 / Math.max(1, found.length)));
    for (const { colour: tone, strength, lines: pairs } of groups.values()) {
      pen.strokeStyle = tone;
      pen.globalAlpha = Math.max(0.05, (chosen >= 0 ? 1 : crowd) * (strength / 4));
      pen.lineWidth = chosen >= 0 ? 1.4 : 0.8;
      pen.beginPath();
      for (let i = 0; i < pairs.length; i += 2) {
        pen.moveTo(...at(pairs[i]));
        pen.lineTo(...at(pairs[i + 1]));
      }
      pen.stroke();
    }
    pen.globalAlpha = 1;
    const size = xs.length > 2000 ? 1.3 : xs.length > 300 ? 2.2 : 4;
    for (let i = 0; i < xs.length; i++) {
      pen.fillStyle = look.of(colours[i]);
      mark(pen, colours[i] % MARKS, ...at(i), i === chosen ? 2 * size : size);
    }
    const pairs = new Set(found.map(([a, b]) => Math.min(a, b) * xs.length + Math.max(a, b))).size;
    const only = all > found.length ? `, from the ${found.length} most frequent of ${all} merges` : "";
    said.textContent = `Pairs of peers that merged: ${pairs}${only}.`;
  }
  function show() {
    const partners = new Set(edges().found.filter(([a, b]) => a === chosen || b === chosen).map(([a, b]) => (a === chosen ? b : a)));
    const groupName = figure.colours.length > 1 ? [figure.colours[colours[chosen]]] : [];
    note.show(...at(chosen), [nameOf(view, peers[chosen]), ...groupName, `joined with ${partners.size} peers`]);
  }
  function choose(next) {
    if (next === chosen) return;
    chosen = next;
    draw();
    if (chosen >= 0) show();
    else note.hide();
  }
  node.addEventListener("pointermove", (event) => {
    let best = 15 * 15, next = -1;
    for (let i = 0; i < xs.length; i++) {
      const [x, y] = at(i), far = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
      if (far < best) [best, next] = [far, i];
    }
    choose(next);
  });
  node.addEventListener("pointerleave", () => choose(-1));
  node.addEventListener("blur", () => choose(-1));
  node.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose((chosen + step + xs.length) % xs.length);
  });
  return { draw, follow(round) { place = round.place; draw(); } };
}

function timeline(figure, card) {
  const events = unpack(figure.events, "u1"), columns = figure.rounds.length;
  const tones = ["", "var(--grey)", colour(0), colour(1)], signs = ["", "·", "", "×"];
  card.append(el("ul", { class: "key" }, ...figure.meaning.slice(1).map((text, i) => {
    const block = svg("rect", { width: 12, height: 12 });
    block.style.fill = tones[i + 1];
    return el("li", {}, svg("svg", { width: 12, height: 12, "aria-hidden": true }, block), `${text}${signs[i + 1] ? ` (${signs[i + 1]})` : ""}`);
  })));
  const body = figure.rows.map((name, row) => {
    const cells = Array.from(figure.rounds, (round, i) => {
      const event = events[row * columns + i];
      const cell = el("td", { class: `event e${event}`, title: `${name}, round ${round}: ${figure.meaning[event]}` }, signs[event]);
      return cell;
    });
    return el("tr", {}, el("th", { scope: "row" }, name), ...cells);
  });
  const step = Math.max(1, Math.round(columns / 12));
  const head = el("tr", {}, el("th", { scope: "col" }, "round"), ...figure.rounds.map((round, i) => el("th", { scope: "col" }, i % step ? "" : String(round))));
  const scroll = el("div", { class: "scroll newest", tabindex: 0, role: "region", "aria-label": figure.title }, el("table", { class: "events" }, el("thead", {}, head), el("tbody", {}, ...body)));
  card.append(scroll);
  let placed = false;
  function draw() {
    if (placed || scroll.scrollWidth <= scroll.clientWidth) return;
    scroll.scrollLeft = scroll.scrollWidth; // the last rounds
    placed = true;
  }
  return { draw };
}
