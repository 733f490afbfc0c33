// Peak memory against step time, a point for each plan of a search, as an SVG picture.

const PLANS_TOP = 44, PLANS_BOTTOM = 44, PLAN_ORDER = ["unfit", "other", "front", "chosen"];

/** A scale from values to 0 … 1 with round levels. It is logarithmic if the values span more than a factor of ten. */
function value_scale(values, parts, base) {
  const low = values.reduce((low, value) => Math.min(low, value), Infinity);
  const high = values.reduce((high, value) => Math.max(high, value), 0);
  const by_logarithm = low > 0 && high / low > 10;
  const [scaled, back] = by_logarithm ? [Math.log, Math.exp] : [value => value, value => value];
  const room = (scaled(high) - scaled(low)) * 0.07 || Math.max(high * 0.1, 1);
  const from = by_logarithm ? scaled(low) - room : Math.max(low - room, 0), to = scaled(high) + room;
  const levels = [];
  if (by_logarithm) {
    const powers = (to - from) / Math.log(base), stride = Math.max(Math.ceil(powers / parts), 1);
    const factors = base === 10 && powers < 2.5 ? [1, 2, 5] : [1];
    const first = Math.floor(from / Math.log(base) / stride) * stride;
    for (let power = first; power * Math.log(base) <= to; power += stride) levels.push(...factors.map(factor => factor * base ** power));
  } else {
    const step = round_step(to - from, parts, base);
    for (let level = Math.ceil(from / step); level * step <= to && levels.length < 20; level++) levels.push(level * step);
  }
  return {
    place: value => (scaled(value) - from) / (to - from),
    levels: levels.filter(level => scaled(level) >= from && scaled(level) <= to),
    end: back(to), by_logarithm,
  };
}

/** Makes an SVG element, in the namespace that the page's own one has. */
function shape(tag, attributes, text) {
  const made = document.createElementNS(element("plans-chart").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** The mark of a kind of plan, in the picture or in its legend. */
function plan_mark(kind, x, y) {
  if (kind === "measured") return shape("path", { class: "measured-mark", d: `M${x - 9} ${y}L${x} ${y - 9}L${x + 9} ${y}L${x} ${y + 9}Z` });
  return shape("circle", { class: "plan " + kind, cx: x, cy: y, r: kind === "chosen" ? 5.5 : kind === "front" ? 4 : 3.5 });
}

/** Draws the plans that have a time. Returns a function that marks one of them; `tell` hears which one the reader points at. */
function plans_chart({ rows, limit, measured_peak, measured_ns }, tell) {
  const chart = element("plans-chart"), drawn = rows.filter(row => !Number.isNaN(row.ns));
  chart.setAttribute("aria-label", "peak memory against step time of " + count(drawn.length) + " plans");
  if (drawn.length === 0) {
    chart.setAttribute("hidden", "");
    return () => {};
  }
  const by_peak = [...drawn].sort((a, b) => a.peak_bytes - b.peak_bytes || a.ns - b.ns);
  const measured = measured_peak === null ? [] : [measured_peak], measured_times = Number.isNaN(measured_ns) ? [] : [measured_ns];
  const halo = shape("circle", { class: "halo", r: 9 });
  const points = new Map();
  let marked = null, drawn_width = 0;

  function scales(width, height) {
    const peaks = [...drawn.map(row => row.peak_bytes), ...measured].sort((a, b) => a - b);
    // A limit far from all plans would press them together: it is only named at the edge.
    const is_near = limit !== null && limit <= peaks[peaks.length - 1] * 4 && limit >= peaks[0] / 4;
    const across = value_scale(is_near ? [...peaks, limit] : peaks, Math.max(width / 110, 3), 2);
    const up = value_scale([...drawn.map(row => row.ns), ...measured_times], height / 45, 10);
    return [across, up];
  }

  function draw() {
    const width = chart.clientWidth;
    if (width === drawn_width || width === 0) return;
    drawn_width = width;
    const left = LEFT, top = PLANS_TOP, right = width - RIGHT, bottom = chart.clientHeight - PLANS_BOTTOM;
    const [across, up] = scales(right - left, bottom - top);
    const x = value => left + (right - left) * across.place(value), y = value => bottom - (bottom - top) * up.place(value);
    const parts = [];
    const add = (...made) => parts.push(shape(...made));
    /** A label above the picture, beside a vertical line. */
    const label = (kind, place, row, text) => {
      const side = place > (left + right) / 2 ? ["end", -5] : ["start", 5];
      add("text", { class: kind, x: place + side[1], y: top - 20 + row * 14, "text-anchor": side[0] }, text);
    };

    for (const level of up.levels) {
      add("path", { class: "grid", d: `M${left} ${Math.round(y(level)) + 0.5}H${right}` });
      add("text", { x: left - 7, y: y(level) + 4, "text-anchor": "end" }, time(level, up.end));
    }
    for (const level of across.levels) {
      add("path", { class: "grid", d: `M${Math.round(x(level)) + 0.5} ${bottom}v4` });
      // A label at the edge stays inside of the page.
      const text = bytes(level), most = right + RIGHT - text.length * 3.2;
      add("text", { x: Math.min(x(level), most), y: bottom + 17, "text-anchor": "middle" }, text);
    }
    const kind_of = scale => scale.by_logarithm ? ", logarithmic" : "";
    add("text", { x: 0, y: 10 }, "step time" + kind_of(up));
    add("text", { x: right, y: bottom + 36, "text-anchor": "end" }, "peak memory" + kind_of(across));

    if (limit !== null) {
      const place = across.place(limit), at = Math.min(Math.max(x(limit), left), right);
      if (place < 1) add("rect", { class: "beyond", x: at, y: top, width: right - at, height: bottom - top });
      if (place > 0 && place < 1) add("path", { class: "limit-line", d: `M${at} ${top - 30}V${bottom}` });
      label("limit", at, 0, (place <= 0 ? "← " : "") + "limit " + bytes(limit) + (place >= 1 ? " →" : ""));
    }
    const stairs = by_peak.filter(row => row.is_on_front)
      .map((row, index) => index === 0 ? `M${x(row.peak_bytes)} ${y(row.ns)}` : `H${x(row.peak_bytes)}V${y(row.ns)}`);
    add("path", { class: "stairs", d: stairs.join("") });
    for (const peak of measured) {
      add("path", { class: "measured-line", d: `M${x(peak)} ${top - 16}V${bottom}` });
      label("measured", x(peak), 1, "measured peak " + bytes(peak));
    }
    for (const row of [...drawn].sort((a, b) => PLAN_ORDER.indexOf(a.kind) - PLAN_ORDER.indexOf(b.kind))) {
      points.set(row, [x(row.peak_bytes), y(row.ns)]);
      parts.push(plan_mark(row.kind, ...points.get(row)));
    }
    if (measured.length > 0 && measured_times.length > 0) parts.push(plan_mark("measured", x(measured_peak), y(measured_ns)));
    chart.replaceChildren(...parts, halo);
    mark(marked);
  }

  function mark(row) {
    marked = row;
    const [x, y] = points.get(row) || [-99, -99];
    halo.setAttribute("cx", x);
    halo.setAttribute("cy", y);
  }

  /** The plan whose point is next to the pointer, if one is near. */
  function nearest(event) {
    const box = chart.getBoundingClientRect();
    let best = null, least = 30 ** 2;
    for (const [row, [x, y]] of points) {
      const distance = (event.clientX - box.left - x) ** 2 + (event.clientY - box.top - y) ** 2;
      if (distance <= least) [best, least] = [row, distance];
    }
    return best;
  }

  for (const kind of ["pointermove", "pointerdown"]) chart.addEventListener(kind, event => tell(nearest(event)));
  chart.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") tell(null); });
  chart.addEventListener("blur", () => tell(null));
  chart.addEventListener("keydown", event => {
    const at = by_peak.indexOf(marked || rows.find(row => row.kind === "chosen"));
    const next = { ArrowLeft: Math.max(at - 1, 0), ArrowRight: Math.min(at + 1, by_peak.length - 1), Home: 0, End: by_peak.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    tell(by_peak[next]);
  });
  view.listeners.push(draw);
  return mark;
}
