// Regions at a chosen moment, ordered by address: a row for each, with its blocks by category and its free space.

const ROW = 20, HEAD = 20, MOST_ROWS = 24, NEARLY_EMPTY = 0.1;

function segments(data) {
  const { map } = data, { exact } = map, scroll = element("segments"), canvas = element("segments-canvas");
  const facts = data.allocator, noun = facts ? "segment" : "region", word = facts ? "allocated" : "live";
  const begin = sums(exact.begin_ns), kept = sums(map.moments_ns), starts = Float64Array.from(map.extents, extent => extent[3]);
  const has_window = map.has_all_regions && exact.to_ns > 0;
  if (map.regions.length === 0 || !(has_window || kept.length > 0)) return;
  element("segments-section").hidden = false;
  element("segments-title").textContent = facts ? "Segments at a moment" : "Regions at a moment";
  const are_streams_shown = facts !== undefined || new Set(map.regions.map(region => region[4]).filter(stream => stream !== null)).size > 1;
  const stream_name = stream => stream === null ? "several streams" : facts && facts.streams[stream] || "stream " + stream;

  /** The nearest moment at which the page has all regions and blocks. */
  function nearest(at) {
    if (has_window && at >= exact.from_ns && at <= exact.to_ns) return at;
    const index = last_at(kept, at), ends = has_window ? [exact.from_ns, exact.to_ns] : [];
    const near = [...kept.slice(Math.max(index, 0), index + 2), ...ends];
    return near.reduce((best, moment) => Math.abs(moment - at) < Math.abs(best - at) ? moment : best);
  }

  /** The regions at a moment, by address. Neighbors are one if the pool joins them. */
  function rows_at(at) {
    const lasts = (from, to) => from <= at && at < to;
    const rows = [];
    const held = map.regions.filter(([from, to]) => lasts(from, to)).sort((a, b) => a[2] - b[2]);
    for (const [, , place, length, stream] of held) {
      const extent = last_at(starts, place), last = rows[rows.length - 1];
      if (last && last.extent === extent && last.place + last.length === place && map.joined[extent]) {
        last.length += length;
        if (last.stream !== stream) last.stream = null;
      } else rows.push({ place, length, stream, extent, blocks: [], live: 0, largest: -1 });
    }
    const blocks = [];
    for (let index = 0; index < begin.length && begin[index] <= at; index++) {
      if (lasts(begin[index], begin[index] + exact.life_ns[index])) blocks.push(index);
    }
    blocks.sort((a, b) => exact.at[a] - exact.at[b]);
    let number = 0;
    for (const block of blocks) {
      const place = exact.at[block];
      while (number < rows.length && rows[number].place + rows[number].length <= place) number++;
      const row = rows[number];
      if (!row || row.place > place) continue;
      row.blocks.push(block);
      row.live += exact.bytes[block];
      if (row.largest < 0 || exact.bytes[block] > exact.bytes[row.largest]) row.largest = block;
    }
    return rows;
  }

  const orders = {
    address: (a, b) => a.place - b.place,
    free: (a, b) => (b.length - b.live) - (a.length - a.live),
    bytes: (a, b) => b.length - a.length,
  };
  let rows = [], order = orders.address, known = null, at = 0, selected = -1;

  function address(row) {
    const [pool, start, , place] = map.extents[row.extent];
    return [pool, "0x" + (BigInt(start) + BigInt(row.place - place)).toString(16)];
  }

  const part = row => row.live / Math.max(row.length, 1);
  const percent = row => row.live === 0 ? "empty" : part(row) < 0.01 ? "<1 %" : Math.floor(part(row) * 100) + " %";
  const counted = (number, noun) => count(number) + " " + noun + (number === 1 ? "" : "s");

  /** Finds the regions of the chosen moment, and sums them up. */
  function update() {
    at = nearest(view.moment);
    known = view.moment;
    rows = rows_at(at).sort(order);
    selected = -1;
    const sum = (rows, of) => rows.reduce((sum, row) => sum + of(row), 0), free = row => row.length - row.live;
    const empty = rows.filter(row => row.live === 0), sparse = rows.filter(row => row.live > 0 && part(row) <= NEARLY_EMPTY);
    const reserved = sum(rows, row => row.length), live = sum(rows, row => row.live);
    const parts = [
      [empty, "without a block"], [sparse, "at most " + NEARLY_EMPTY * 100 + " % in use"],
      [rows.filter(row => part(row) > NEARLY_EMPTY && row.live < row.length), "more than " + NEARLY_EMPTY * 100 + " % in use"],
    ].filter(([rows]) => rows.length > 0).map(([rows, how]) => bytes(sum(rows, free)) + " in " + counted(rows.length, noun) + " " + how);
    element("segments-sum").textContent = counted(rows.length, noun) + ", " + bytes(reserved) + " reserved, " + bytes(live) + " " + word +
      ", difference " + bytes(reserved - live) + (parts.length > 0 ? ": " + parts.join(", ") : "") + ".";
    const off = Math.abs(at - view.moment) > (view.end - view.begin) / 1000;
    element("moment-shown").textContent = "At " + time(at, view.end) + (off ? ", the nearest moment that the page has" : "");
    element("moment").value = Math.round((view.moment - view.begin) / (view.end - view.begin) * 1000);
    element("moment").setAttribute("aria-valuetext", time(at, view.end));
    for (const [button, moment] of buttons) button.setAttribute("aria-pressed", moment === view.moment);
    const height = HEAD + Math.min(Math.max(rows.length, 1), MOST_ROWS) * ROW + 2;
    canvas.style.height = scroll.style.height = height + "px";
    canvas.parentElement.style.height = HEAD + rows.length * ROW + 2 + "px";
    element("segments-readout").textContent = rows.length === 0 ? "Nothing is reserved." : "";
  }

  /** Where the columns begin and end, for the width of the canvas. */
  function columns() {
    const width = canvas.clientWidth, is_wide = width >= 620;
    const size = is_wide ? 190 : 62, after = 52 + (is_wide && are_streams_shown ? 150 : 0);
    return { is_wide, size, left: size + 10, width: Math.max(width - size - 10 - after, 20), percent: width - after + 44, stream: width - after + 54 };
  }

  function draw() {
    if (known !== view.moment) update();
    const { context, width, height } = sized(canvas), place = columns();
    const text = (content, x, y, align, ink) => {
      context.textAlign = align;
      context.fillStyle = ink;
      context.fillText(content, x, y);
    };
    context.textBaseline = "middle";
    const first = Math.floor(scroll.scrollTop / ROW);
    for (let number = first; number < rows.length && (number - first) * ROW < height; number++) {
      const row = rows[number], top = HEAD + number * ROW - scroll.scrollTop, middle = top + ROW / 2;
      if (number === selected) {
        context.fillStyle = palette.faint;
        context.fillRect(0, top, width, ROW);
      }
      if (place.is_wide) text(address(row)[1], 4, middle, "left", palette.quiet);
      text(bytes(row.length), place.size, middle, "right", palette.ink);
      const scale = place.width / row.length;
      context.fillStyle = palette.reserved;
      context.fillRect(place.left, top + 3, place.width, ROW - 6);
      for (const block of row.blocks) {
        const left = place.left + (exact.at[block] - row.place) * scale;
        const wide = Math.min(exact.bytes[block] * scale, place.left + place.width - left);
        context.fillStyle = color(data.categories[exact.category[block]]);
        context.fillRect(left, top + 3, Math.max(wide > 4 ? wide - 0.7 : wide, 0.75), ROW - 6);
      }
      text(percent(row), place.percent, middle, "right", row.live > 0 && part(row) <= NEARLY_EMPTY ? palette.mark : palette.ink);
      if (place.is_wide && are_streams_shown) text(stream_name(row.stream), place.stream, middle, "left", palette.quiet);
    }
    context.fillStyle = palette.paper;
    context.fillRect(0, 0, width, HEAD);
    context.fillStyle = palette.line;
    context.fillRect(0, HEAD - 1, width, 1);
    if (place.is_wide) text("address", 4, HEAD / 2, "left", palette.quiet);
    text("bytes", place.size, HEAD / 2, "right", palette.quiet);
    text("blocks by category, gray is free", place.left, HEAD / 2, "left", palette.quiet);
    text("in use", place.percent, HEAD / 2, "right", palette.quiet);
    if (place.is_wide && are_streams_shown) text("stream", place.stream, HEAD / 2, "left", palette.quiet);
  }

  const told = block => bytes(exact.bytes[block]) + " of " + worded(data.categories[exact.category[block]]) + ", " +
    (data.names[exact.owner[block]] || "no op") + ", since " + time(begin[block], view.end);

  /** The largest free space between the blocks of a region. */
  function largest_free(row) {
    let end = row.place, most = 0;
    for (const block of row.blocks) {
      most = Math.max(most, exact.at[block] - end);
      end = Math.max(end, exact.at[block] + exact.bytes[block]);
    }
    return Math.max(most, row.place + row.length - end);
  }

  /** Tells about a region, and about the block at a position in it. */
  function tell(number, place = null) {
    const row = rows[number];
    if (!row) return;
    selected = number;
    const [pool, start] = address(row), kept_by = row.blocks.length === 1 ? "kept by " : "the largest block: ";
    const stream = are_streams_shown ? ", " + stream_name(row.stream) : "";
    const here = place === null ? undefined : row.blocks.find(block => exact.at[block] <= place && place < exact.at[block] + exact.bytes[block]);
    element("segments-readout").textContent = pool + " " + start + ", " + bytes(row.length) + stream + ": " +
      (row.blocks.length === 0 ? "no block, the pool keeps it for later requests"
        : bytes(row.live) + " in " + counted(row.blocks.length, "block") + ", " + bytes(row.length - row.live) + " free in pieces of at most " +
          bytes(largest_free(row)) + "; " + kept_by + told(row.largest)) +
      (here === undefined || row.blocks.length === 1 ? "" : "; here: " + told(here)) + ".";
    redraw();
  }

  function choose(moment) {
    view.moment = moment;
    redraw();
  }

  const { peak } = data.timeline, last = exact.to_ns > 0 && has_window && kept.length === 0 ? exact.to_ns : data.report.run.duration_ns;
  const moments = [
    ...(peak === null ? [] : [["peak", peak_at]]),
    ...(facts && facts.gaps.length > 0 ? facts.gaps.map(gap => [gap.moment, gap.at_ns])
      : data.reserved ? [["largest difference", data.reserved.gap.at_ns]] : []),
    ["end", last],
  ].filter(([name], index, all) => all.findIndex(([other]) => other === name) === index);
  const buttons = moments.map(([label, moment]) => {
    const button = make("button", label);
    button.addEventListener("click", () => choose(moment));
    element("moments").append(button);
    return [button, moment];
  });
  view.moment = moments[Math.min(facts ? 1 : 0, moments.length - 1)][1];
  element("moment").addEventListener("input", event => choose(view.begin + event.target.value / 1000 * (view.end - view.begin)));
  choice(element("segments-by"), [["by address", orders.address], ["by free bytes", orders.free], ["by bytes", orders.bytes]], chosen => {
    order = chosen;
    rows.sort(order);
    selected = -1;
    scroll.scrollTop = 0;
    redraw();
  });

  canvas.addEventListener("pointermove", event => {
    const box = canvas.getBoundingClientRect(), bar = columns(), y = event.clientY - box.top - HEAD;
    const number = Math.floor((y + scroll.scrollTop) / ROW), row = rows[number];
    const share = (event.clientX - box.left - bar.left) / bar.width;
    if (y >= 0 && row) tell(number, share >= 0 && share < 1 ? row.place + share * row.length : null);
  });
  scroll.addEventListener("scroll", redraw);
  scroll.addEventListener("keydown", event => {
    const next = { ArrowDown: selected + 1, ArrowUp: selected - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (next === undefined || rows.length === 0) return;
    event.preventDefault();
    const number = Math.min(Math.max(next, 0), rows.length - 1), room = scroll.clientHeight - HEAD - 2;
    scroll.scrollTop = Math.min(Math.max(scroll.scrollTop, (number + 1) * ROW - room), number * ROW);
    tell(number);
  });
  element("segments-by").parentElement.hidden = map.regions.length < 2;
  element("segments-note").textContent = "A click in the timeline or on the map chooses the moment; the triangle on the time axis shows it. " +
    "Every bar has the same length: what counts is its filled part. Red: at most " + NEARLY_EMPTY * 100 + " % in use.";
  view.listeners.push(draw);
}
