// Elements, numbers, colours and packed arrays. Text from the data becomes text nodes only, never markup.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 7;
const DASHES = ["", "6 3", "2 2", "8 3 2 3", "1 3"];

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Numbers

function format(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return value.toExponential(digits - 2);
  return String(size >= 10 ** (digits - 1) ? Math.round(value) : Number(value.toPrecision(digits)));
}

// The texts of ticks, with as many digits as the exact values need, so that no two are the same.
function tickTexts(values) {
  let digits = 4;
  while (digits < 14 && values.some((value) => Number(format(value, digits)) !== value)) digits++;
  return values.map((value) => format(value, digits));
}

function ticks(low, high, most, whole) {
  const rough = Math.max((high - low) / Math.max(1, most), whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

function range(values, padding) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null || Number.isNaN(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 1];
  const extra = high > low ? (high - low) * padding : Math.abs(high) * 0.1 || 1;
  return [low - extra, high + extra];
}

// Packed arrays

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array };

function bytesOf(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

const unpack = (text, type) => new ARRAYS[type](bytesOf(text).buffer);

function varints(text, count) {
  const bytes = bytesOf(text), found = new Float64Array(count);
  let at = 0;
  for (let i = 0; i < count; i++) {
    let factor = 1, value = 0, byte;
    do {
      byte = bytes[at++];
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte & 128);
    found[i] = value;
  }
  return found;
}

// The merges of each shown round as cells (row * size + column) and counts.
function framesOf(packed) {
  const total = packed.lengths.reduce((sum, length) => sum + length, 0);
  const steps = varints(packed.steps, total);
  const counts = packed.counts === null ? null : varints(packed.counts, total);
  const frames = [];
  let start = 0;
  for (const length of packed.lengths) {
    let cell = 0;
    for (let i = start; i < start + length; i++) {
      cell += steps[i];
      steps[i] = cell;
    }
    frames.push({ cells: steps.subarray(start, start + length), counts: counts && counts.subarray(start, start + length) });
    start += length;
  }
  return { size: packed.size, rounds: packed.rounds, frames };
}

// Colours: variables of the style sheet, so that they follow the light or dark theme

const variable = (index) => (index < 0 ? "--ink" : `--c${index % COLOURS}`);
const colour = (index) => `var(${variable(index)})`;
const dash = (index, dashed) => (dashed ? "6 4" : index < 0 ? "" : DASHES[Math.floor(index / COLOURS) % DASHES.length]);

function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    of: (index) => read(variable(index)),
    ink: read("--ink"), soft: read("--soft"), line: read("--line"), panel: read("--panel"), grey: read("--grey"),
  };
}

// A small text beside the pointer or the keyboard's position; it covers the figure and moves nothing.
function tip(box) {
  const node = el("div", { class: "tip", role: "status", hidden: true });
  box.append(node);
  return {
    hide() { node.hidden = true; },
    show(x, y, lines) {
      node.replaceChildren(...lines.map((line) => (line instanceof Node ? line : el("div", {}, line))));
      node.hidden = false;
      const left = x + 14 + node.offsetWidth > box.clientWidth ? x - 14 - node.offsetWidth : x + 14;
      node.style.left = `${Math.max(0, left)}px`;
      node.style.top = `${Math.max(0, Math.min(y - 10, box.clientHeight - node.offsetHeight))}px`;
    },
  };
}
