// The curves of the run's log over the same time as the memory: losses in one picture, every other number by choice below.

const LINES = ["parameter", "gradient", "activation", "output", "input", "optimizer_state", "temporary", "workspace", "communication", "mapped"];

function curves(data) {
  if (!data.log || data.log.curves.length === 0) return;
  element("training").hidden = false;
  const all = data.log.curves.map(curve => ({
    ...curve, at: sums(curve.at_ns), step: sums(curve.steps), breaks: new Set(sums(curve.breaks)),
  }));
  const is_loss = curve => /loss/i.test(curve.name);
  // Logs without a loss show their first curve in its place.
  const losses = all.some(is_loss) ? all.filter(is_loss) : all.slice(0, 1);
  const others = all.filter(curve => !losses.includes(curve));
  let by_logarithm = false, shown = others[0] || null;

  /** A number with four digits. */
  function figure(value) {
    const size = Math.abs(value);
    if (value === 0 || (size >= 1e-3 && size < 1e6)) return String(Number(value.toPrecision(4)));
    return value.toExponential(2);
  }

  /** Round levels from a low to a high value; powers of ten, halved and doubled, for logarithms. */
  function levels(low, high, logarithms) {
    const found = [];
    if (logarithms) {
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
        for (const factor of Math.log10(high / low) > 3 ? [1] : [1, 2, 5]) found.push(factor * 10 ** power);
      }
      return found.filter(level => level >= low && level <= high);
    }
    const least = (high - low) / 4, power = 10 ** Math.floor(Math.log10(least));
    const step = power * ([1, 2, 5, 10].find(factor => factor * power >= least) || 10);
    for (let level = Math.ceil(low / step); level * step <= high && found.length < 20; level++) found.push(level * step);
    return found;
  }

  /** The stretch of points to draw: what is in view, and one point beyond on either side. */
  const stretch = curve => [
    Math.max(last_at(curve.at, view.from), 0),
    Math.min(last_at(curve.at, view.to) + 2, curve.at.length),
  ];

  function draw_curves(canvas, drawn, logarithms, hue) {
    const frame = prepare(canvas), { context, plot, x } = frame;
    let low = Infinity, high = -Infinity;
    for (const curve of drawn) {
      const [from, to] = stretch(curve);
      for (let index = from; index < to; index++) {
        const value = curve.values[index];
        if (logarithms && value <= 0) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    if (low <= high) {
      if (low === high) {
        const room = Math.max(Math.abs(low), 1e-9) / 10;
        [low, high] = logarithms ? [low / 2, high * 2] : [low - room, high + room];
      }
      [low, high] = [Math.max(low, logarithms ? Number.MIN_VALUE : -Number.MAX_VALUE), Math.min(high, Number.MAX_VALUE)];
      const scaled = logarithms ? Math.log : value => value;
      const bottom = scaled(low), span = Math.max(scaled(high) - bottom, Number.MIN_VALUE);
      const y = value => plot.top + plot.height * (0.98 - 0.96 * (scaled(value) - bottom) / span);
      context.textAlign = "right";
      context.textBaseline = "middle";
      for (const level of levels(low, high, logarithms)) {
        context.fillStyle = palette.line;
        context.fillRect(plot.left, Math.round(y(level)), plot.width, 1);
        context.fillStyle = palette.quiet;
        context.fillText(figure(level), plot.left - 7, y(level));
      }
      context.save();
      context.beginPath();
      context.rect(plot.left, plot.top - 4, plot.width, plot.height + 8);
      context.clip();
      context.lineJoin = "round";
      drawn.forEach((curve, number) => {
        context.strokeStyle = context.fillStyle = color(LINES[(number + hue) % LINES.length]);
        const [from, to] = stretch(curve);
        const dense = to - from > 2 * plot.width, few = to - from < plot.width / 12;
        context.lineWidth = dense ? 1 : 1.75;
        const has_place = index => !logarithms || curve.values[index] > 0;
        /** Whether the line goes to a point from the one before. */
        const joined = index => index > from && index < to && !curve.breaks.has(index) && has_place(index - 1) && has_place(index);
        context.beginPath();
        for (let index = from; index < to; index++) {
          if (!has_place(index)) continue;
          const at = [x(curve.at[index]), y(curve.values[index])];
          if (joined(index)) context.lineTo(...at); else context.moveTo(...at);
        }
        context.stroke();
        // Few points are seen as such, and one alone is seen at all.
        for (let index = from; index < to; index++) {
          if (!has_place(index) || !(few || (!joined(index) && !joined(index + 1)))) continue;
          context.beginPath();
          context.arc(x(curve.at[index]), y(curve.values[index]), few ? 2.5 : context.lineWidth, 0, 7);
          context.fill();
        }
      });
      context.restore();
    }
    draw_time_axis(frame);
    draw_cursor(frame);
  }

  const legend = losses.map((curve, number) => {
    const line = make("li"), swatch = make("span", "", { class: "swatch" }), value = make("b");
    line.append(swatch, make("span", worded(curve.name)), value);
    element("curves-legend").append(line);
    return { swatch, value, curve, number };
  });

  /** The point at the cursor, or the last. */
  const here = curve => view.cursor === null ? curve.at.length - 1 : last_at(curve.at, view.cursor);

  function tell() {
    for (const { swatch, value, curve, number } of legend) {
      const index = here(curve);
      swatch.style.background = color(LINES[number % LINES.length]);
      value.textContent = index < 0 ? "–" : figure(curve.values[index]);
    }
    const longest = all.reduce((most, curve) => curve.points > most.points ? curve : most);
    const index = here(longest);
    const when = view.cursor === null ? "At the end" : "At " + time(view.cursor);
    const other = shown && here(shown) >= 0 ? ", " + worded(shown.name) + " " + figure(shown.values[here(shown)]) : "";
    element("curves-readout").textContent = index < 0 ? when + ": before the first step"
      : when + ": step " + count(longest.step[index]) + other;
  }

  const small = element("curve-small");
  function draw() {
    draw_curves(element("curves"), losses, by_logarithm, 0);
    if (shown) draw_curves(small, [shown], false, losses.length);
    tell();
  }

  const logarithm = element("curves-logarithm");
  const may = losses.some(curve => curve.values.some(value => value > 0));
  logarithm.hidden = !may;
  logarithm.addEventListener("click", () => {
    by_logarithm = !by_logarithm;
    logarithm.setAttribute("aria-pressed", by_logarithm);
    redraw();
  });
  const choices = others.map(curve => {
    const button = make("button", worded(curve.name), { "aria-pressed": curve === shown });
    button.addEventListener("click", () => {
      shown = curve;
      others.forEach((other, number) => choices[number].setAttribute("aria-pressed", other === shown));
      redraw();
    });
    return button;
  });
  element("curves-by").append(...choices);
  small.hidden = !shown;
  const kept = all.reduce((sum, curve) => sum + curve.at.length, 0), points = all.reduce((sum, curve) => sum + curve.points, 0);
  element("curves-note").textContent = count(data.log.lines) + " lines of the log" +
    (kept < points ? ", of whose points the lowest and highest of each stretch are kept" : "") +
    (data.log.cut ? ", without a last one that broke off" : "") + ". The time is that of the memory below.";
  view.listeners.push(draw);
  listen(element("curves"), () => {});
  listen(small, () => {});
}
