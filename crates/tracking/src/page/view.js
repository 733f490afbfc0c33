// The stretch of time that is shown, common to the timeline and the map, the moment of the regions, and the ways to change them.

const view = { from: 0, to: 1, begin: 0, end: 1, cursor: null, chosen: null, moment: null, listeners: [] };
const LEFT = 64, RIGHT = 12, BOTTOM = 22;

function show(from, to) {
  const width = Math.min(Math.max(to - from, 100), view.end - view.begin);
  const middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - width / 2, view.begin), view.end - width);
  view.to = view.from + width;
  redraw();
}

const zoom = (at, factor) => show(at - (at - view.from) * factor, at + (view.to - at) * factor);

let pending = false;
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; for (const draw of view.listeners) draw(); });
}

/** Sizes a canvas for the screen, and returns its cleared context and its size. */
function sized(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
  return { context, width, height };
}

/** Sizes a canvas with a time axis, and returns its context, its plot and the scale of time. */
function prepare(canvas) {
  const { context, width, height } = sized(canvas);
  const plot = { left: LEFT, top: 14, width: width - LEFT - RIGHT, height: height - BOTTOM - 14 };
  const x = ns => plot.left + (ns - view.from) / (view.to - view.from) * plot.width;
  return { context, plot, x };
}

/** A round step that cuts the span into at most so many parts; `base` is 10, or 2 for bytes. */
function round_step(span, parts, base) {
  const least = span / parts;
  if (base === 2) return 2 ** Math.ceil(Math.log2(Math.max(least, 1)));
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return power * [1, 2, 5, 10].find(factor => factor * power >= least);
}

function draw_time_axis({ context, plot, x }) {
  const step = round_step(view.to - view.from, Math.max(plot.width / 110, 3), 10);
  context.fillStyle = palette.quiet;
  context.textAlign = "center";
  context.textBaseline = "top";
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    const place = x(at);
    context.fillRect(place, plot.top + plot.height, 1, 4);
    const label = time(at, view.to), half = context.measureText(label).width / 2;
    const limit = plot.left + plot.width + RIGHT - half;
    context.fillText(label, Math.min(place, limit), plot.top + plot.height + 7);
  }
}

function draw_cursor({ context, plot, x }) {
  if (view.chosen) {
    const [from, to] = view.chosen.map(x);
    context.fillStyle = palette.ink;
    context.globalAlpha = 0.12;
    context.fillRect(Math.min(from, to), plot.top, Math.abs(to - from), plot.height);
    context.globalAlpha = 1;
  }
  context.fillStyle = palette.ink;
  if (view.moment !== null && view.moment >= view.from && view.moment <= view.to) {
    const place = x(view.moment), foot = plot.top + plot.height;
    context.beginPath();
    context.moveTo(place, foot - 8);
    context.lineTo(place - 6, foot + 2);
    context.lineTo(place + 6, foot + 2);
    context.closePath();
    context.fill();
    context.strokeStyle = palette.paper;
    context.stroke();
  }
  if (view.cursor === null || view.cursor < view.from || view.cursor > view.to) return;
  context.fillRect(Math.round(x(view.cursor)), plot.top, 1, plot.height);
}

/** Hover tells, a click or tap chooses the moment of the regions, a drag chooses a stretch, the wheel zooms, a double click shows all, arrows move. */
function listen(canvas, hover) {
  const at = event => {
    const box = canvas.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    return view.from + Math.min(Math.max(part, 0), 1) * (view.to - view.from);
  };
  let began = null;
  canvas.addEventListener("pointerdown", event => { began = at(event); canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", event => {
    view.cursor = at(event);
    view.chosen = began === null ? null : [began, view.cursor];
    hover(event);
    redraw();
  });
  const end = event => {
    const chosen = view.chosen;
    began = view.chosen = null;
    view.cursor = at(event);
    hover(event);
    if (chosen && event.type === "pointerup" && Math.abs(chosen[1] - chosen[0]) > (view.to - view.from) / 100) {
      show(Math.min(...chosen), Math.max(...chosen));
    } else if (event.type === "pointerup" && view.moment !== null) {
      view.moment = view.cursor;
    }
    redraw();
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("dblclick", () => act("all"));
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    zoom(at(event), event.deltaY > 0 ? 1.25 : 0.8);
  }, { passive: false });
  canvas.addEventListener("keydown", event => {
    const action = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "-": "out", Home: "all" }[event.key];
    if (action) { event.preventDefault(); act(action); }
  });
}

let peak_at = 0;
function act(action) {
  const width = view.to - view.from, middle = (view.from + view.to) / 2, hundredth = (view.end - view.begin) / 100;
  if (action === "all") show(view.begin, view.end);
  if (action === "peak") { view.cursor = peak_at; show(peak_at - hundredth, peak_at + hundredth); }
  if (action === "in") zoom(view.cursor === null ? middle : Math.min(Math.max(view.cursor, view.from), view.to), 0.5);
  if (action === "out") zoom(middle, 2);
  if (action === "left") show(view.from - width / 4, view.to - width / 4);
  if (action === "right") show(view.from + width / 4, view.to + width / 4);
}

/** Reads the data, fills the page, and draws it again when its size or colors change. */
async function start(fill_page) {
  try {
    const data = await read_data();
    read_palette();
    fill_page(data);
    window.addEventListener("resize", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { read_palette(); redraw(); });
    redraw();
  } catch (error) {
    element("title").textContent = "This page could not be drawn";
    element("notes").hidden = false;
    element("notes").textContent = String(error);
  }
}
