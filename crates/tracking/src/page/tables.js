// The tables: the peak taken apart, the ops, requests that found no memory.

/** Buttons of which one is pressed. */
function choice(parent, options, choose) {
  const buttons = options.map(([label, value]) => {
    const button = make("button", label, { "aria-pressed": "false" });
    button.addEventListener("click", () => press(button, value));
    parent.append(button);
    return button;
  });
  function press(button, value) {
    for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
    choose(value);
  }
  press(buttons[0], options[0][1]);
}

/** Fills a table: columns are [heading, value, text, kind]; those with a value sort. */
function fill(table, columns, rows, sorted, sort) {
  const head = make("tr");
  columns.forEach(([heading, value], index) => {
    const cell = make("th", value ? undefined : heading, { scope: "col" });
    if (value) {
      const button = make("button", heading + (sorted.column === index ? (sorted.down ? " ▾" : " ▴") : ""));
      button.addEventListener("click", () => sort(index));
      cell.append(button);
      if (sorted.column === index) cell.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
    }
    head.append(cell);
  });
  const { value } = Object.fromEntries([["value", columns[sorted.column][1]]]);
  const order = (a, b) => value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0;
  const ordered = [...rows].sort(sorted.down ? (a, b) => order(b, a) : order);
  const lines = ordered.map(row => {
    const line = make("tr");
    for (const [, , cell, kind] of columns) {
      const content = cell(row);
      const made = make("td", typeof content === "string" ? content : undefined, kind ? { class: kind } : {});
      if (typeof content !== "string") made.append(content);
      line.append(made);
    }
    return line;
  });
  const [top, body] = [make("thead"), make("tbody")];
  top.append(head);
  body.append(...lines);
  table.replaceChildren(top, body);
}

function sortable(table, columns, column) {
  const sorted = { column, down: true };
  let rows = [];
  const draw = () => fill(table, columns, rows, sorted, index => {
    sorted.down = sorted.column === index ? !sorted.down : index > 0;
    sorted.column = index;
    draw();
  });
  return next => { rows = next; draw(); };
}

function parts_table(data) {
  const parts = data.peak_parts;
  const most = () => Math.max(...[...parts.places, ...parts.scopes, ...parts.categories].map(part => part.bytes), 1);
  const bar = part => {
    const held = make("span"), falls = make("i");
    held.style.width = part.bytes / most() * 100 + "%";
    falls.style.width = Math.min(part.falls / Math.max(part.bytes, 1), 1) * 100 + "%";
    held.append(falls);
    held.title = "holds " + bytes(part.bytes) + ", the peak falls by " + bytes(part.falls);
    return held;
  };
  const show_rows = sortable(element("parts"), [
    ["holder", part => part.name, part => (parts.categories.includes(part) ? worded(part.name) : part.name) || "(outside of ops)"],
    ["held, MiB", part => part.bytes, part => mib(part.bytes)],
    ["peak falls by, MiB", part => part.falls, part => mib(part.falls)],
    ["", null, bar, "bar"],
    ["next peak, MiB", part => part.next_peak, part => mib(part.next_peak)],
    ["of that held", part => part.falls / part.bytes, part => share(part.falls / part.bytes)],
    ["next peak in", part => part.next_owner, part => part.next_owner || "–", "name"],
  ], 2);
  choice(element("parts-by"), [
    ["by category", parts.categories], ["by module", parts.scopes], ["by op in module", parts.places],
  ], show_rows);
}

function ops_table(data) {
  const name = row => (row.scope ? row.scope + "." : "") + row.op + (row.phase === "forward" ? "" : ":" + row.phase);
  const figure = (heading, key) => [heading, row => row[key], row => mib(row[key])];
  const show_rows = sortable(element("ops"), [
    ["op", name, name],
    figure("at the peak, MiB", "peak_bytes"),
    ["share", row => row.peak_share, row => share(row.peak_share)],
    ["calls", row => row.calls, row => count(row.calls)],
    figure("high water", "high_water_bytes"),
    figure("self peak", "self_peak_bytes"),
    figure("outliving", "outliving_bytes"),
    figure("live before", "live_before_bytes"),
    figure("saved", "saved_bytes"),
    figure("granted", "granted_bytes"),
  ], 1);
  let rows = [];
  const filter = () => {
    const wanted = element("filter").value.toLowerCase();
    const found = rows.filter(row => name(row).toLowerCase().includes(wanted));
    show_rows(found);
    element("ops-count").textContent = found.length + " of " + rows.length + ", in MiB";
  };
  element("filter").addEventListener("input", filter);
  choice(element("ops-by"), [["by op", data.ops], ["by op in module", data.places]], next => { rows = next; filter(); });
}

/** A table with the bytes of some holders. */
function holders_table(heading, holders, of) {
  const scroll = make("div", undefined, { class: "scroll" }), table = make("table");
  scroll.append(table);
  sortable(table, [
    [heading, row => row[0], row => row[0] || "(outside of ops)"],
    ["MiB", row => row[1], row => mib(row[1])],
    ["of what was in use", row => row[1], row => share(row[1] / Math.max(of, 1))],
  ], 1)(holders);
  return scroll;
}

/** What the pool said of a failure: its figures beyond those that events tell. */
function told_facts(report) {
  const facts = [];
  if (report.budget) facts.push(bytes(report.budget.live) + " of the " + bytes(report.budget.limit) + " of " + (report.budget.scope || "all ops"));
  facts.push(bytes(report.in_use) + " in use", bytes(report.free) + " free", "largest free block " + bytes(report.largest_free));
  if (report.pending_bytes > 0) facts.push(bytes(report.pending_bytes) + " given back but pinned in " + count(report.pending_blocks) + " blocks");
  if (report.stranded_bytes > 0) facts.push(bytes(report.stranded_bytes) + " stranded");
  facts.push(bytes(report.reserved) + " reserved");
  if (report.limit !== null) facts.push("limit " + bytes(report.limit) + (report.limit_origin ? " (" + report.limit_origin + ")" : ""));
  if (report.reserved_by_others !== null) facts.push("others have " + bytes(report.reserved_by_others));
  if (report.waited_ms > 0) facts.push("waited " + count(report.waited_ms) + " ms");
  if (report.retries > 0) facts.push("made again " + count(report.retries) + " times");
  return facts;
}

function failures(data) {
  if (data.failed_requests === 0) return;
  element("oom").hidden = false;
  for (const failure of data.failures) {
    const { report } = failure;
    let facts = [bytes(failure.in_use) + " in use"];
    if (failure.limit !== null) facts.push("limit " + bytes(failure.limit));
    if (failure.reserved > 0) facts.push(bytes(failure.reserved) + " reserved", "largest free piece " + bytes(failure.largest_free));
    if (report) facts = told_facts(report);
    const subject = report && report.shape ? " for [" + report.shape.join(", ") + "] of " + report.dtype : "";
    const box = make("div");
    box.append(
      make("p", bytes(failure.requested) + " (" + worded(failure.category) + ") asked of " + failure.pool + " by " +
        (failure.owner || "no op") + subject + " after " + time(failure.at_ns) + ": " + (report ? report.advice : failure.verdict), { class: "warning" }),
      make("p", facts.join(", ")),
    );
    if (report && report.what_if.length > 0) {
      const answers = fits => report.what_if.filter(answer => answer.fits === fits).map(answer => answer.what).join("; ");
      if (answers(true)) box.append(make("p", "It would have fitted " + answers(true) + "."));
      if (answers(false)) box.append(make("p", "It would not have fitted " + answers(false) + ".", { class: "quiet" }));
    }
    const pairs = rows => rows.map(row => [row.name, row.bytes]);
    if (report) {
      const of = report.budget ? report.budget.live : report.in_use;
      const kinds = [["by op", "op", pairs(report.ops)], ["by module", "module", pairs(report.scopes).map(([name, size]) => [name || "(outside of modules)", size])],
        ["by category", "category", pairs(report.categories).map(([name, size]) => [worded(name), size])]];
      const group = make("span", undefined, { role: "group" }), controls = make("div", undefined, { class: "controls" }), place = make("div");
      controls.append(group);
      box.append(controls, place);
      choice(group, kinds.map(([label, heading, rows]) => [label, [heading + " that held most then", rows]]),
        ([heading, rows]) => place.replaceChildren(holders_table(heading, rows, of)));
    } else {
      box.append(holders_table("held most then", failure.holders, failure.in_use));
    }
    element("oom-list").append(box);
  }
  const more = data.failed_requests - data.failures.length;
  if (more > 0) element("oom-list").append(make("p", "and " + count(more) + " more requests", { class: "quiet" }));
}
