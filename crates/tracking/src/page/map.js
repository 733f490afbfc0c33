// Addresses over time: cells for the whole run, single blocks where the page has them.

function map(data) {
  const canvas = element("map"), { map } = data, { exact } = map;
  const begin = sums(exact.begin_ns);
  const has_exact = () => exact.to_ns > 0 && view.from >= exact.from_ns && view.to <= exact.to_ns;
  const cells = new Uint8Array(map.columns * map.rows);
  for (let index = 0, cell = 0; index < map.cells.length; index += 2) {
    cells.fill(map.cells[index], cell, cell += map.cells[index + 1]);
  }
  let painted = null, painted_for = null;

  /** The cells as a picture, lowest address at the bottom. */
  function paint() {
    const key = palette.paper;
    if (painted_for === key) return painted;
    const picture = document.createElement("canvas");
    picture.width = map.columns;
    picture.height = map.rows;
    const context = picture.getContext("2d"), image = context.createImageData(map.columns, map.rows);
    const colors = data.categories.map(components);
    cells.forEach((cell, index) => {
      if (cell === 0) return;
      const row = map.rows - 1 - Math.floor(index / map.columns), column = index % map.columns;
      image.data.set([...colors[(cell >> 4) - 1], Math.round((cell & 15) * 17)], (row * map.columns + column) * 4);
    });
    context.putImageData(image, 0, 0);
    [painted, painted_for] = [picture, key];
    return picture;
  }

  function draw() {
    const frame = prepare(canvas), { context, plot, x } = frame;
    const y = place => plot.top + plot.height * (1 - place / Math.max(map.bytes, 1));
    context.save();
    context.beginPath();
    context.rect(plot.left, plot.top, plot.width, plot.height);
    context.clip();
    context.fillStyle = palette.reserved;
    for (const [from, to, place, length] of map.regions) {
      context.fillRect(x(from), y(place + length), Math.max(x(to) - x(from), 1), y(place) - y(place + length));
    }
    if (has_exact()) draw_blocks(context, x, y);
    else {
      const from = view.from / view.end * map.columns, width = (view.to - view.from) / view.end * map.columns;
      context.imageSmoothingEnabled = width > plot.width;
      context.drawImage(paint(), from, 0, width, map.rows, plot.left, plot.top, plot.width, plot.height);
    }
    context.restore();

    context.textAlign = "right";
    context.textBaseline = "middle";
    const step = round_step(map.bytes, 6, 2);
    for (let place = 0; place <= map.bytes; place += step) {
      context.fillStyle = palette.quiet;
      context.fillText(bytes(place), plot.left - 7, y(place));
      context.fillRect(plot.left - 4, Math.round(y(place)), 4, 1);
    }
    context.fillStyle = palette.ink;
    map.extents.forEach(([pool, address, , place], index) => {
      if (index > 0) context.fillRect(plot.left, Math.round(y(place)), plot.width, 1);
    });
    context.strokeStyle = palette.line;
    context.strokeRect(plot.left + 0.5, plot.top + 0.5, plot.width - 1, plot.height - 1);
    draw_time_axis(frame);
    draw_cursor(frame);
    element("map-note").textContent = map.extents.length + (map.extents.length === 1 ? " address range" : " address ranges") +
      ", " + bytes(map.bytes) + ", one above the other; gray is reserved and free. " + (has_exact()
      ? "Each block is drawn separately."
      : "A cell has the color of its dominant category. A stronger color means a fuller cell." +
        (exact.to_ns > 0 ? " Between " + time(exact.from_ns, view.end) + " and " + time(exact.to_ns, view.end) +
        ", around the peak, single blocks are drawn when zoomed in." : ""));
  }

  function draw_blocks(context, x, y) {
    for (let index = 0; index < begin.length && begin[index] < view.to; index++) {
      const end = begin[index] + exact.life_ns[index];
      if (end < view.from) continue;
      const left = Math.max(x(begin[index]), LEFT - 2), width = Math.max(Math.min(x(end), canvas.clientWidth) - left, 0.5);
      const top = y(exact.at[index] + exact.bytes[index]), height = Math.max(y(exact.at[index]) - top, 0.5);
      context.fillStyle = color(data.categories[exact.category[index]]);
      // A hair between neighbors, where there is room for one.
      context.fillRect(left, top, width > 4 ? width - 0.7 : width, height > 4 ? height - 0.7 : height);
    }
  }

  function tell(event) {
    const box = canvas.getBoundingClientRect(), height = box.height - BOTTOM - 14;
    const place = (1 - (event.clientY - box.top - 14) / height) * map.bytes;
    const extent = [...map.extents].reverse().find(extent => extent[3] <= place);
    if (!extent || place < 0 || place > map.bytes) return;
    const [pool, address, , start] = extent;
    const where = time(view.cursor, view.end) + ", " + pool + " " + address + " + " + bytes(Math.round(place - start));
    let found = "free";
    if (has_exact()) {
      for (let index = 0; index < begin.length && begin[index] <= view.cursor; index++) {
        const inside = begin[index] + exact.life_ns[index] >= view.cursor &&
          exact.at[index] <= place && place < exact.at[index] + exact.bytes[index];
        if (inside) {
          found = bytes(exact.bytes[index]) + " of " + worded(data.categories[exact.category[index]]) + ", " +
            (data.names[exact.owner[index]] || "no op") + ", for " + time(exact.life_ns[index]);
        }
      }
    } else {
      const row = Math.min(Math.floor(place / map.bytes * map.rows), map.rows - 1);
      const column = Math.min(Math.floor(view.cursor / view.end * map.columns), map.columns - 1);
      const cell = cells[row * map.columns + column];
      if (cell > 0) found = "mostly " + worded(data.categories[(cell >> 4) - 1]) + ", " + Math.round((cell & 15) / 0.15) + " % full";
    }
    element("map-readout").textContent = where + ": " + found;
  }

  view.listeners.push(draw);
  listen(canvas, tell);
}
