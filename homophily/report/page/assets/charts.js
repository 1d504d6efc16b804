// Figures drawn as SVG. A chart is drawn for the present width of its box, and again if the width changes.

function axes(box, label, xRange, yRange, names, xs) {
  const width = Math.max(160, box.clientWidth), height = box.clientHeight;
  const [x0, x1] = xRange, [y0, y1] = yRange, levels = ticks(y0, y1, Math.max(3, height / 45)), marks = tickTexts(levels);
  const edge = { left: 30 + 7 * Math.max(...marks.map((text) => text.length)), right: 14, top: 10, bottom: 40 };
  const x = (value) => edge.left + ((value - x0) / (x1 - x0 || 1)) * (width - edge.left - edge.right);
  const y = (value) => height - edge.bottom - ((value - y0) / (y1 - y0 || 1)) * (height - edge.top - edge.bottom);
  const root = svg("svg", { width, height, role: "img", tabindex: 0, "aria-label": label });
  levels.forEach((value, i) => {
    root.append(
      svg("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: edge.left - 6, y: y(value) + 4, "text-anchor": "end" }, marks[i]),
    );
  });
  const whole = xs && xs.values.every(Number.isInteger), places = ticks(x0, x1, Math.max(2, width / 90), whole);
  const said = xs && xs.names.length ? places.map((value) => xs.names[value]) : tickTexts(places);
  places.forEach((value, i) => {
    root.append(svg("text", { class: "tick", x: x(value), y: height - edge.bottom + 16, "text-anchor": "middle" }, said[i]));
  });
  const middle = (edge.top + height - edge.bottom) / 2;
  root.append(
    svg("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: height - edge.bottom, y2: height - edge.bottom }),
    svg("text", { class: "name", x: (edge.left + width - edge.right) / 2, y: height - 6, "text-anchor": "middle" }, names[0]),
    svg("text", { class: "name", x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, names[1]),
  );
  return { root, x, y, width, height, edge };
}

function path(points) {
  let text = "", open = false;
  for (const [x, y] of points) {
    if (y === null) { open = false; continue; }
    text += `${open ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    open = true;
  }
  return text;
}

function swatch(index, dashed) {
  const line = svg("line", { x1: 1, x2: 23, y1: 6, y2: 6, "stroke-width": 3, "stroke-dasharray": dash(index, dashed) });
  line.style.stroke = colour(index);
  return svg("svg", { width: 24, height: 12, "aria-hidden": true }, line);
}

function lines(figure, card) {
  const hidden = new Set();
  const legend = el("div", { class: "legend" }, ...figure.series.map((one, place) => el("button", {
    type: "button", "aria-pressed": "true", title: "show or hide this line",
    onclick(event) {
      if (!hidden.delete(place)) hidden.add(place);
      event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(place)));
      draw();
    },
  }, swatch(one.colour, one.dashed), one.name)));
  const box = el("div", { class: "plot" });
  card.append(figure.series.length > 1 ? legend : "", box, numbers(figure));

  function draw() {
    const shown = figure.series.filter((_, place) => !hidden.has(place));
    const xs = [...new Set(shown.flatMap((one) => one.x))].sort((a, b) => a - b);
    const chart = axes(box, figure.title, range(xs, 0), figure.y_range, [figure.x_label, figure.y_label], { values: xs, names: figure.x_names });
    const said = (value) => (figure.x_names.length ? figure.x_names[value] : format(value));
    const inside = (value) => Math.min(chart.height - chart.edge.bottom, Math.max(chart.edge.top, chart.y(value)));
    for (const one of shown) {
      if (one.low) {
        const there = one.x.map((_, i) => i).filter((i) => one.low[i] !== null);
        const up = there.map((i) => [chart.x(one.x[i]), inside(one.high[i])]);
        const down = there.map((i) => [chart.x(one.x[i]), inside(one.low[i])]).reverse();
        const band = svg("path", { class: "band", d: path([...up, ...down]) + "Z" });
        band.style.fill = colour(one.colour);
        chart.root.append(band);
      }
    }
    for (const one of shown) {
      const points = one.x.map((x, i) => [chart.x(x), one.y[i] === null ? null : chart.y(one.y[i])]);
      const curve = svg("path", { class: one.colour < 0 ? "curve main" : "curve", d: path(points), "stroke-dasharray": dash(one.colour, one.dashed) });
      curve.style.stroke = colour(one.colour);
      chart.root.append(curve);
      if (points.length <= 40) {
        for (const [x, y] of points) {
          if (y === null) continue;
          const dot = svg("circle", { cx: x, cy: y, r: 2.4 });
          dot.style.fill = colour(one.colour);
          chart.root.append(dot);
        }
      }
    }
    const cursor = svg("line", { class: "cursor", y1: chart.edge.top, y2: chart.height - chart.edge.bottom });
    chart.root.append(cursor);
    box.replaceChildren(chart.root);
    const note = tip(box);
    let at = xs.length - 1;
    function show(y) {
      if (!xs.length) return;
      const x = chart.x(xs[at]);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.classList.add("on");
      const found = shown.map((one) => [one, one.y[one.x.indexOf(xs[at])]]).filter(([, value]) => value !== undefined);
      note.show(x, y, [`${figure.x_label} ${said(xs[at])}`, ...found.map(([one, value]) =>
        el("div", {}, swatch(one.colour, one.dashed), ` ${one.name} ${format(value)}`))]);
    }
    const leave = () => { cursor.classList.remove("on"); note.hide(); };
    chart.root.addEventListener("pointermove", (event) => {
      const wanted = event.offsetX;
      at = xs.reduce((best, value, i) => (Math.abs(chart.x(value) - wanted) < Math.abs(chart.x(xs[best]) - wanted) ? i : best), 0);
      show(event.offsetY);
    });
    chart.root.addEventListener("pointerleave", leave);
    chart.root.addEventListener("blur", leave);
    chart.root.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      at = Math.min(xs.length - 1, Math.max(0, at + step));
      show(30);
    });
  }
  return { draw };
}

// The numbers of a line chart as a table, made when it is opened.
function numbers(figure) {
  return el("details", {
    ontoggle(event) {
      if (event.currentTarget.childElementCount > 1) return;
      const columns = figure.series.map((one) => new Map(one.x.map((x, i) => [x, one.y[i]])));
      const xs = [...new Set(figure.series.flatMap((one) => one.x))].sort((a, b) => a - b);
      const rows = xs.map((x) => [figure.x_names.length ? figure.x_names[x] : format(x), ...columns.map((column) => format(column.get(x)))]);
      event.currentTarget.append(grid([figure.x_label, ...figure.series.map((one) => one.name)], rows, figure.title));
    },
  }, el("summary", {}, "Numbers"));
}

function intervals(figure, card) {
  const box = el("div", { class: "plot" });
  box.style.height = `${Math.max(110, 26 * figure.names.length + 60)}px`;
  card.append(box);
  function draw() {
    const width = box.clientWidth, height = box.clientHeight, left = Math.min(150, width * 0.33), bottom = 40;
    const [low, high] = range([...figure.means, ...figure.low, ...figure.high], 0.06);
    const x = (value) => left + ((value - low) / (high - low)) * (width - left - 16);
    const root = svg("svg", { width, height, role: "img", tabindex: 0, "aria-label": figure.title });
    const levels = ticks(low, high, (width - left) / 80), marks = tickTexts(levels);
    levels.forEach((value, i) => {
      root.append(
        svg("line", { class: "grid", x1: x(value), x2: x(value), y1: 4, y2: height - bottom }),
        svg("text", { class: "tick", x: x(value), y: height - bottom + 16, "text-anchor": "middle" }, marks[i]),
      );
    });
    root.append(svg("text", { class: "name", x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, figure.label));
    figure.names.forEach((name, i) => {
      const y = 4 + (i + 0.5) * ((height - bottom - 4) / figure.names.length);
      const short = name.length * 7 > left - 14 ? `${name.slice(0, Math.floor((left - 14) / 7) - 1)}…` : name;
      const said = figure.low[i] === null ? "" : `, interval ${format(figure.low[i])} to ${format(figure.high[i])}`;
      root.append(svg("text", { class: "label", x: left - 10, y: y + 4, "text-anchor": "end" }, short, svg("title", {}, name)));
      if (figure.means[i] === null) {
        root.append(svg("text", { class: "tick", x: left + 6, y: y + 4 }, figure.missing[i]));
        return;
      }
      const dot = svg("circle", { cx: x(figure.means[i]), cy: y, r: 5 }, svg("title", {}, `${name}: ${format(figure.means[i])}${said}`));
      dot.style.fill = colour(i);
      if (figure.low[i] !== null) {
        const bar = svg("path", { class: "bar", d: `M${x(figure.low[i])} ${y}H${x(figure.high[i])}M${x(figure.low[i])} ${y - 5}v10M${x(figure.high[i])} ${y - 5}v10` });
        bar.style.stroke = colour(i);
        root.append(bar);
      }
      root.append(dot);
    });
    box.replaceChildren(root);
  }
  return { draw };
}

function bars(figure, card) {
  const box = el("div", { class: "plot" });
  card.append(box);
  function draw() {
    const top = range([0, figure.threshold, ...figure.values], 0.05)[1];
    const chart = axes(box, figure.title, [0.4, figure.values.length + 0.6], [0, top], [figure.x_label, figure.y_label]);
    figure.values.forEach((value, i) => {
      const [left, right] = [chart.x(i + 0.65), chart.x(i + 1.35)];
      const above = figure.threshold === null || value > figure.threshold;
      const bar = svg("rect", { x: left, y: chart.y(value), width: right - left, height: chart.y(0) - chart.y(value) },
        svg("title", {}, `${figure.x_label} ${i + 1}: ${format(value)}`));
      bar.style.fill = above ? colour(0) : "var(--grey)";
      chart.root.append(bar);
    });
    if (figure.threshold !== null) {
      const y = chart.y(figure.threshold);
      const line = svg("line", { class: "threshold", x1: chart.edge.left, x2: chart.width - chart.edge.right, y1: y, y2: y });
      line.style.stroke = colour(1);
      const label = `${figure.threshold_label} ${format(figure.threshold)}`;
      chart.root.append(line, svg("text", { class: "label", x: chart.width - chart.edge.right, y: y - 6, "text-anchor": "end" }, label));
    }
    box.replaceChildren(chart.root);
  }
  return { draw };
}

function histogram(figure, card) {
  const measured = figure.measured.map((one) => ({
    peer: one.peer,
    rounds: one.rounds.map((entry) => ({ ...entry, values: unpack(entry.values, "f4") })),
  }));
  const choice = el("select", { onchange: () => draw() }, ...measured.map((one, i) => el("option", { value: i }, one.peer)));
  const said = el("p", { class: "said", role: "status" });
  const box = el("div", { class: "plot" });
  card.append(el("label", { class: "field" }, "Peer ", choice), box, said);
  let round = Infinity;
  function draw() {
    const chosen = measured[Number(choice.value)].rounds;
    const known = chosen.filter((entry) => entry.round <= round);
    const entry = known.length ? known[known.length - 1] : chosen[0];
    const all = range(chosen.flatMap((one) => [...one.values]), 0.02);
    const cells = Math.max(6, Math.min(30, Math.round(2 * Math.sqrt(entry.values.length)) + 4));
    const wide = (all[1] - all[0]) / cells, counts = new Array(cells).fill(0);
    for (const value of entry.values) counts[Math.min(cells - 1, Math.max(0, Math.floor((value - all[0]) / wide)))]++;
    const curves = entry.groups.filter(([, , deviation]) => deviation > 0).map(([name, mean, deviation, size]) => {
      const points = Array.from({ length: 121 }, (_, i) => all[0] + ((all[1] - all[0]) * i) / 120);
      const height = (x) => ((size * wide) / (deviation * Math.sqrt(2 * Math.PI))) * Math.exp(-0.5 * ((x - mean) / deviation) ** 2);
      return { name, mean, points: points.map((x) => [x, height(x)]) };
    });
    const top = Math.max(...counts, ...curves.flatMap((one) => one.points.map(([, y]) => y)));
    const chart = axes(box, figure.title, all, [0, top * 1.06], [figure.x_label, "peers"]);
    counts.forEach((count, i) => {
      const [left, right] = [chart.x(all[0] + i * wide), chart.x(all[0] + (i + 1) * wide)];
      chart.root.append(svg("rect", { class: "column", x: left + 0.5, y: chart.y(count), width: Math.max(1, right - left - 1), height: chart.y(0) - chart.y(count) },
        svg("title", {}, `${format(all[0] + i * wide)} to ${format(all[0] + (i + 1) * wide)}: ${count} peers`)));
    });
    curves.forEach((one, i) => {
      const curve = svg("path", { class: "curve main", d: path(one.points.map(([x, y]) => [chart.x(x), chart.y(y)])), "stroke-dasharray": DASHES[i] });
      curve.style.stroke = colour(i);
      chart.root.append(curve);
    });
    box.replaceChildren(chart.root);
    const groups = entry.groups.map(([name, mean, deviation, size]) => `${name}: ${size} peers, mean ${format(mean)}, standard deviation ${format(deviation)}`);
    said.textContent = [`Round ${entry.round}, ${entry.values.length} similarities.`, ...groups.map((text) => `${text}.`)].join(" ");
  }
  return { draw, follow(at) { round = at.round; draw(); } };
}
