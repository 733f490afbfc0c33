// Live bytes by category over time, and reserved bytes above them. A column of pixels with many moments shows the lowest solid and the highest pale.

/** The index of the lowest and of the highest value from one time to another, the last one before included; -1 without one. */
function extremes(at, values, from, to) {
  const first = last_at(at, from);
  let low = first, high = first;
  for (let index = first + 1; index < at.length && at[index] < to; index++) {
    if (low < 0 || values[index] < values[low]) low = index;
    if (high < 0 || values[index] > values[high]) high = index;
  }
  return [low, high];
}

function timeline(data) {
  const canvas = element("timeline");
  const at = sums(data.timeline.at_ns);
  const columns = STACK.map(name => sums(data.timeline.bytes[data.categories.indexOf(name)]));
  const total = Float64Array.from(at, (_, index) => columns.reduce((sum, column) => sum + column[index], 0));
  const peak = data.timeline.peak, marks = data.report.marks || [];
  if (peak !== null) peak_at = at[peak];

  // What the pools reserved; null if that is unknown.
  const reserved = data.reserved && { at: sums(data.reserved.at_ns), bytes: sums(data.reserved.bytes) };
  const toggle = element("reserved"), word = data.allocator ? "allocated" : "live";
  // A pool that reserves its limit at once would flatten the curve of the blocks.
  let has_reserved = reserved !== null && (data.allocator !== undefined || data.reserved.peak_bytes <= 4 * (peak === null ? 0 : total[peak]));
  toggle.hidden = reserved === null;
  toggle.setAttribute("aria-pressed", has_reserved);
  toggle.addEventListener("click", () => {
    has_reserved = !has_reserved;
    toggle.setAttribute("aria-pressed", has_reserved);
    redraw();
  });
  if (reserved) element("timeline-title").textContent = "Reserved bytes, and live bytes by category";

  /** Draws the reserved bytes: pale above the blocks, with a line on top. */
  function draw_reserved(context, spans, plot, width, y) {
    const line = new Path2D();
    spans.forEach(([low, high], pixel) => {
      if (high < 0) return;
      const left = plot.left + pixel * width, top = y(reserved.bytes[high]);
      context.fillStyle = palette.reserved;
      context.fillRect(left, top, width, y(0) - top);
      if (line.begun) line.lineTo(left, y(reserved.bytes[low])); else line.moveTo(left, y(reserved.bytes[low]));
      line.begun = true;
      line.lineTo(left, top);
      line.lineTo(left + width, top);
    });
    context.strokeStyle = palette.quiet;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.stroke(line);
    context.lineWidth = 1;
  }

  function draw_stack(context, moment, x, width, y) {
    if (moment < 0) return;
    let sum = 0;
    STACK.forEach((name, row) => {
      const value = columns[row][moment];
      if (value === 0) return;
      const top = y(sum + value);
      context.fillStyle = color(name);
      context.fillRect(x, top, width, y(sum) - top);
      sum += value;
    });
  }

  /** Draws the moments that the program marked, as lines with labels. Those that would touch another one are left out. */
  function draw_marks({ context, plot, x }) {
    const right = plot.left + plot.width;
    let line = -Infinity, label_end = plot.left;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.lineJoin = "round";
    context.lineWidth = 3;
    context.strokeStyle = palette.paper;
    context.fillStyle = palette.ink;
    for (const mark of marks) {
      const place = Math.round(x(mark.at_ns));
      if (mark.at_ns < view.from || mark.at_ns > view.to || place < line + 4) continue;
      line = place;
      context.fillRect(place, plot.top, 1, plot.height);
      const text = mark.text.length > 24 ? mark.text.slice(0, 23) + "…" : mark.text;
      const width = context.measureText(text).width, left = place + 4 + width > right ? place - 4 - width : place + 4;
      if (left < label_end) continue;
      label_end = left + width + 8;
      context.strokeText(text, left, plot.top + 7);
      context.fillText(text, left, plot.top + 7);
    }
    context.lineWidth = 1;
  }

  function draw() {
    const frame = prepare(canvas), { context, plot, x } = frame;
    const ratio = window.devicePixelRatio || 1, pixels = Math.max(Math.round(plot.width * ratio), 1);
    const ns = part => view.from + (view.to - view.from) * part / pixels;
    const spans_of = (at, values) => Array.from({ length: pixels }, (_, pixel) => extremes(at, values, ns(pixel), ns(pixel + 1)));
    const most_of = (spans, values) => spans.reduce((most, [, high]) => high < 0 ? most : Math.max(most, values[high]), 1);
    const spans = spans_of(at, total), held = has_reserved ? spans_of(reserved.at, reserved.bytes) : [];
    const most = Math.max(most_of(spans, total), has_reserved ? most_of(held, reserved.bytes) : 1);
    const y = value => plot.top + plot.height * (1 - value / (most * 1.04));

    const step = round_step(most, 6, 2);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let level = 0; level <= most; level += step) {
      context.fillStyle = palette.line;
      context.fillRect(plot.left, Math.round(y(level)), plot.width, 1);
      context.fillStyle = palette.quiet;
      context.fillText(bytes(level), plot.left - 7, y(level));
    }
    const width = plot.width / pixels;
    if (has_reserved) draw_reserved(context, held, plot, width, y);
    spans.forEach(([low, high], pixel) => {
      const left = plot.left + pixel * width;
      if (low !== high) {
        context.globalAlpha = 0.45;
        draw_stack(context, high, left, width, y);
        context.globalAlpha = 1;
        if (low >= 0) {
          context.fillStyle = has_reserved ? palette.reserved : palette.paper;
          context.fillRect(left, y(total[low]), width, y(0) - y(total[low]));
        }
      }
      draw_stack(context, low, left, width, y);
    });
    draw_marks(frame);
    if (peak !== null && peak_at >= view.from && peak_at <= view.to) {
      const place = x(peak_at), label = "peak " + bytes(total[peak]);
      context.strokeStyle = context.fillStyle = palette.mark;
      context.setLineDash([4, 3]);
      context.beginPath();
      context.moveTo(place, plot.top);
      context.lineTo(place, plot.top + plot.height);
      context.stroke();
      context.setLineDash([]);
      const left = place + 6 + context.measureText(label).width > plot.left + plot.width;
      context.textAlign = left ? "right" : "left";
      context.fillText(label, place + (left ? -5 : 5), plot.top - 7);
    }
    draw_time_axis(frame);
    draw_cursor(frame);
    const is_all = view.from <= view.begin && view.to >= view.end;
    element("range").textContent = (is_all ? "the whole run, " : "") + time(view.from, view.to) + " to " + time(view.to, view.to);
    tell();
  }

  const legend = STACK.filter(name => columns[STACK.indexOf(name)].some(value => value > 0)).map(name => {
    const line = make("li"), swatch = make("span", "", { class: "swatch" }), figure = make("b");
    line.append(swatch, make("span", worded(name)), figure);
    element("legend").append(line);
    return { swatch, figure, name, column: columns[STACK.indexOf(name)] };
  });
  const free_figure = make("b"), free_swatch = make("span", "", { class: "swatch reserved" });
  if (reserved) {
    const line = make("li");
    line.append(free_swatch, make("span", "reserved, free"), free_figure);
    element("legend").append(line);
  }

  /** Says what was live and reserved under the cursor, or at the peak. */
  function tell() {
    let moment = peak, where = "At the peak, ";
    if (view.cursor !== null) {
      const pixel = (view.to - view.from) / canvas.clientWidth;
      [, moment] = extremes(at, total, view.cursor - pixel / 2, view.cursor + pixel / 2);
      where = "At ";
    }
    const known = moment !== null && moment >= 0;
    const held = reserved && known ? last_at(reserved.at, at[moment]) : -1;
    const difference = held < 0 ? 0 : reserved.bytes[held] - total[moment];
    element("readout").textContent = known
      ? where + time(at[moment]) + ": " + bytes(total[moment]) + " " + word + ", " +
        (held < 0 ? "" : bytes(reserved.bytes[held]) + " reserved, difference " + bytes(Math.max(difference, 0)) + ", ") + "in " +
        (data.names[data.timeline.op[moment]] || "no op")
      : "Nothing was " + word + " yet";
    free_figure.textContent = difference > 0 ? bytes(difference) : "–";
    for (const { swatch, figure, name, column } of legend) {
      swatch.style.background = color(name);
      figure.textContent = known && column[moment] > 0 ? bytes(column[moment]) : "–";
    }
  }

  const { moments, intervals } = data.timeline;
  element("timeline-note").textContent = at.length < moments
    ? count(at.length) + " of " + count(moments) + " moments are kept: the lowest and highest of each stretch of " +
      Math.ceil(moments / intervals) + ", so no peak is lost. Pale: the highest within a pixel. Drag or turn the wheel to zoom."
    : "All " + count(moments) + " moments. Pale: the highest within a pixel. Drag or turn the wheel to zoom.";
  view.listeners.push(draw);
  listen(canvas, () => {});
}
