"use strict";
// Units, colors and the data of the page.

const element = id => document.getElementById(id);

/** Makes an element; text is only ever set as text. */
function make(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const KIB = 1024, MIB = 1024 * KIB, GIB = 1024 * MIB;

/** Bytes with three digits, in the unit that suits them. */
function bytes(count) {
  const shown = (unit, name) => {
    const value = count / unit;
    return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + " " + name;
  };
  if (count === 0) return "0";
  if (count < KIB) return count + " B";
  if (count < MIB) return shown(KIB, "KiB");
  return count < GIB ? shown(MIB, "MiB") : shown(GIB, "GiB");
}

/** The unit of a table of which this is the largest number of bytes. */
const unit_for = most => most < 10 * MIB ? [KIB, "KiB"] : most < 10 * GIB ? [MIB, "MiB"] : [GIB, "GiB"];

/** Bytes in the unit of their table, without its name. */
function in_unit(number, [unit]) {
  const value = number / unit;
  if (value === 0) return "–";
  return value < 0.001 ? "<0.001" : count(value.toFixed(value < 1 ? 3 : value < 100 ? 2 : 0));
}

/** Nanoseconds in the unit that suits a span of this length. */
function time(ns, span = ns) {
  const [unit, name] = span < 1e4 ? [1, "ns"] : span < 1e7 ? [1e3, "µs"] : span < 1e10 ? [1e6, "ms"] : [1e9, "s"];
  const digits = unit === 1 ? 0 : Math.max(0, Math.min(3, 3 - Math.floor(Math.log10(Math.max(span / unit, 1)))));
  return (ns / unit).toFixed(digits) + " " + name;
}

const count = number => String(number).replace(/\B(?=(\d{3})+$)/g, "\u00a0");
const share = part => part === 0 ? "–" : (part * 100).toFixed(1) + " %";
const worded = name => name.replaceAll("_", " ");

/** What stays stands below what comes and goes. */
const STACK = ["mapped", "parameter", "optimizer_state", "gradient", "activation", "input", "output", "communication", "workspace", "temporary"];

let palette = {};

function read_palette() {
  const style = getComputedStyle(document.documentElement);
  const names = [...STACK, "paper", "ink", "quiet", "line", "faint", "mark", "reserved"];
  palette = Object.fromEntries(names.map(name => [name, style.getPropertyValue("--" + name).trim()]));
}

const color = name => palette[name] || palette.workspace;

function components(name) {
  const value = parseInt(color(name).slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

function sums(differences) {
  let sum = 0;
  return Float64Array.from(differences, difference => sum += difference);
}

async function read_data() {
  const packed = Uint8Array.from(atob(element("data").textContent.trim()), char => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** The index of the last number that is not above the value, or -1. */
function last_at(numbers, value) {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= value) low = middle + 1; else high = middle;
  }
  return low - 1;
}

/** Adds a figure to the head of the page. */
function add_figure(name, value, more) {
  const box = make("div"), text = make("dd", value);
  if (more) text.append(make("small", more));
  box.append(make("dt", name), text);
  element("figures").append(box);
}
