// The tables: the parts of the peak, the ops, requests that ran out of memory.

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

/**
 * Fills a table: columns are [heading, value, text, { kind, note }]. Those with a value sort. Heading and cells of a kind
 * have its class. A note explains the heading. `finish` gets each line and its row.
 */
function fill(table, columns, rows, sorted, sort, finish) {
  const head = make("tr");
  columns.forEach(([heading, value, , { kind, note } = {}], index) => {
    const cell = make("th", value ? undefined : heading, { scope: "col", ...(kind && { class: kind }), ...(note && { title: note }) });
    if (value) {
      const button = make("button", heading + (sorted.column === index ? (sorted.down ? " ▾" : " ▴") : ""));
      button.addEventListener("click", () => sort(index));
      cell.append(button);
      if (sorted.column === index) cell.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
    }
    head.append(cell);
  });
  const lines = in_order(rows, columns[sorted.column], sorted.down).map(row => {
    const line = make("tr");
    for (const [, , text, { kind } = {}] of columns) {
      const content = text(row);
      const made = make("td", typeof content === "string" ? content : undefined, kind ? { class: kind } : {});
      if (typeof content !== "string") made.append(content);
      line.append(made);
    }
    finish(line, row);
    return line;
  });
  const [top, body] = [make("thead"), make("tbody")];
  top.append(head);
  body.append(...lines);
  table.replaceChildren(top, body);
}

/** The rows by the values of a column; without a column, as they are. */
function in_order(rows, column, down) {
  if (!column) return rows;
  const [, value] = column;
  const order = (a, b) => typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a < b ? -1 : a > b ? 1 : 0;
  return [...rows].sort((a, b) => down ? order(value(b), value(a)) : order(value(a), value(b)));
}

/** A table whose headings sort: numbers with the largest first, text from a to z, and at the next click the other way round. */
function sortable(table, columns, column, finish = () => {}) {
  const sorted = { column, down: true };
  let rows = [];
  const draw = () => fill(table, columns, rows, sorted, index => {
    const is_text = rows.length > 0 && typeof columns[index][1](rows[0]) === "string";
    sorted.down = sorted.column === index ? !sorted.down : !is_text;
    sorted.column = index;
    draw();
  }, finish);
  return next => { rows = next; draw(); };
}

/** Makes columns of bytes in one unit, which suits the largest of these numbers. */
function byte_columns(numbers) {
  const unit = unit_for(numbers.reduce((most, number) => Math.max(most, number), 0));
  return (heading, value, note) => [heading + ", " + unit[1], value, row => in_unit(value(row), unit), { note }];
}

function parts_table(data) {
  const parts = data.report.peak_parts || { places: [], scopes: [], categories: [] };
  const all = [...parts.places, ...parts.scopes, ...parts.categories];
  const most = all.reduce((most, part) => Math.max(most, part.bytes), 1);
  const column = byte_columns(all.flatMap(part => [part.bytes, part.next_peak]));
  const bar = part => {
    const held = make("span"), falls = make("i");
    held.style.width = part.bytes / most * 100 + "%";
    falls.style.width = Math.min(part.falls / Math.max(part.bytes, 1), 1) * 100 + "%";
    held.append(falls);
    held.title = "holds " + bytes(part.bytes) + ", the peak falls by " + bytes(part.falls);
    return held;
  };
  const show_rows = sortable(element("parts"), [
    ["holder", part => part.name, part => (parts.categories.includes(part) ? worded(part.name) : part.name) || "(outside of ops)"],
    column("at peak", part => part.bytes),
    column("peak falls by", part => part.falls),
    ["", null, bar, { kind: "bar" }],
    column("next peak", part => part.next_peak),
    ["share", part => part.falls / Math.max(part.bytes, 1), part => share(part.falls / Math.max(part.bytes, 1))],
    ["next peak in", part => part.next_owner, part => part.next_owner || "–", { kind: "name" }],
  ], 2);
  choice(element("parts-by"), [
    ["by category", parts.categories], ["by module", parts.scopes], ["by op in module", parts.places],
  ], show_rows);
}

/** The holders of each category at the peak. */
function holders_tables(data) {
  const rows = data.holders, column = byte_columns(rows.map(row => row.bytes)), name = row => data.names[row.owner];
  const of = rows.reduce((sum, row) => sum + row.bytes, 0);
  const show_rows = sortable(element("holders"), [
    ["holder", name, row => name(row) || "(outside of ops)"],
    ["category", row => worded(data.categories[row.category]), row => worded(data.categories[row.category]), { kind: "name" }],
    column("at peak", row => row.bytes),
    ["share", row => row.bytes, row => share(row.bytes / Math.max(of, 1))],
    ["blocks", row => row.blocks, row => count(row.blocks)],
  ], 2);
  const categories = [...new Set(rows.map(row => row.category))];
  choice(element("holders-by"), [["all", rows],
    ...categories.map(category => [worded(data.categories[category]), rows.filter(row => row.category === category)])], show_rows);
}

/** The path of an op in its module, with its phase unless that is forward. */
const op_path = row => (row.scope && row.op ? row.scope + "." : row.scope || "") + row.op + (["backward", "optimizer"].includes(row.phase) ? ":" + row.phase : "");

/** What is live at the end, by op, module, category and age. */
function live_table(data) {
  const rows = data.report.live || [], { completed_steps: steps } = data.report;
  element("live-section").hidden = rows.length === 0;
  const range = (ages, text) => !ages ? "–" : text(ages[0]) === text(ages[1]) ? text(ages[1]) : text(ages[0]) + " to " + text(ages[1]);
  const column = byte_columns(rows.map(row => row.bytes));
  const in_steps = ["steps", row => row.age_steps ? row.age_steps[1] : -1, row => range(row.age_steps, count)];
  sortable(element("live"), [
    ["op", row => op_path(row), row => op_path(row) || "(outside of ops)"],
    ["category", row => row.category, row => worded(row.category), { kind: "name" }],
    ["blocks", row => row.blocks, row => count(row.blocks)],
    column("live", row => row.bytes),
    ...(steps > 0 ? [in_steps] : []),
    ["age", row => row.age_ns ? row.age_ns[1] : -1, row => range(row.age_ns, time)],
  ], 3)(rows);
}

/** Ops whose live bytes rise from step to step. */
function growth_table(data) {
  const rows = data.report.growth || [];
  element("growth-section").hidden = rows.length === 0;
  element("growth-note").textContent = "Bytes that these ops hold at the end of each of " + count(data.report.completed_steps) +
    " steps rise steadily: the program keeps results that it no longer needs, or fills a cache.";
  sortable(element("growth"), [
    ["op", row => op_path(row), row => op_path(row) || "(outside of ops)"],
    ["per step", row => row.bytes_per_step, row => bytes(row.bytes_per_step)],
    ["since step", row => row.since_step, row => count(row.since_step)],
    byte_columns(rows.map(row => row.live_bytes))("live", row => row.live_bytes),
  ], 1)(rows);
}

/** The moments that the program marked, in their order. */
function marks_table(data) {
  const rows = data.report.marks || [], { run, completed_steps: steps } = data.report;
  element("marks-section").hidden = rows.length === 0;
  element("marks-note").textContent = rows.length < run.marks
    ? "The first " + count(rows.length) + " of " + count(run.marks) + " moments that the program marked." : "Moments that the program marked.";
  sortable(element("marks"), [
    ["mark", row => row.text, row => row.text || "–"],
    ["time", row => row.at_ns, row => time(row.at_ns, view.end)],
    ...(steps > 0 ? [["steps before", row => row.completed_steps, row => count(row.completed_steps)]] : []),
    byte_columns(rows.map(row => row.live_bytes))("live", row => row.live_bytes),
  ], null)(rows);
}

function ops_table(data) {
  const { ops, places } = data.report;
  // The total of all calls may be so much more that it would spoil the unit.
  const column = byte_columns(ops.flatMap(row => [row.high_water_bytes, row.self_peak_bytes, row.live_before_bytes]));
  const columns = [
    ["op", op_path, op_path],
    column("at peak", row => row.peak_bytes, "bytes of the op at the peak of the run"),
    ["share", row => row.peak_share, row => share(row.peak_share)],
    ["calls", row => row.calls, row => count(row.calls)],
    ["time", row => row.time_ns, row => row.time_ns ? time(row.time_ns) : "–"],
    column("high water", row => row.high_water_bytes, "most bytes of one call at a time, including ops within it"),
    column("self peak", row => row.self_peak_bytes, "most bytes of all calls together at a time"),
    column("outliving", row => row.outliving_bytes, "bytes that were live when the calls that allocated them returned"),
    column("live before", row => row.live_before_bytes, "most bytes live in the pools when a call began"),
    column("for backward", row => row.saved_bytes, "most bytes kept for backward passes at a time"),
    column("total", row => row.total_bytes, "bytes that all calls allocated"),
  ];
  const show_rows = sortable(element("ops"), columns, 1);
  const notes = columns.flatMap(([heading, , , { note } = {}]) => note ? [heading.split(",")[0] + ": " + note] : []);
  element("ops-note").textContent = notes.join("; ").replace(/^./, letter => letter.toUpperCase()) + ".";
  let rows = [];
  const filter = () => {
    const wanted = element("filter").value.toLowerCase();
    const found = rows.filter(row => op_path(row).toLowerCase().includes(wanted));
    show_rows(found);
    element("ops-count").textContent = found.length + " of " + rows.length;
  };
  element("filter").addEventListener("input", filter);
  choice(element("ops-by"), [["by op", ops], ["by op in module", places]], next => { rows = next; filter(); });
}

/** A table with the bytes of some holders. */
function holders_table(heading, holders, of) {
  const scroll = make("div", undefined, { class: "scroll" }), table = make("table");
  scroll.append(table);
  sortable(table, [
    [heading, row => row[0], row => row[0] || "(outside of ops)"],
    byte_columns(holders.map(row => row[1]))("live", row => row[1]),
    ["share of live bytes", row => row[1], row => share(row[1] / Math.max(of, 1))],
  ], 1)(holders);
  return scroll;
}

/** The figures of the pool's report of a failure. */
function oom_facts(report) {
  const facts = [], { pending } = report;
  if (report.budget) facts.push(bytes(report.budget.live) + " of the " + bytes(report.budget.limit) + " of " + (report.budget.scope || "all ops"));
  facts.push(bytes(report.in_use) + " in use", bytes(report.free) + " free", "largest free block " + bytes(report.largest_free));
  if (pending.bytes > 0) facts.push(bytes(pending.bytes) + " freed but still in use in " + count(pending.blocks) + " blocks");
  if (pending.stranded_bytes > 0) facts.push(bytes(pending.stranded_bytes) + " stranded");
  facts.push(bytes(report.reserved) + " reserved");
  if (report.limit !== null) facts.push("limit " + bytes(report.limit) + (report.limit_origin ? " (" + report.limit_origin + ")" : ""));
  if (report.reserved_by_others !== null) facts.push("others have " + bytes(report.reserved_by_others));
  if (report.waited_ms > 0) facts.push("waited " + count(report.waited_ms) + " ms");
  if (report.retries > 0) facts.push("retried " + count(report.retries) + " times");
  return facts;
}

/** Sums of the holdings of a report by a key. */
function held_by(report, key) {
  const sums = new Map();
  for (const holding of report.holdings) sums.set(key(holding), (sums.get(key(holding)) || 0) + holding.bytes);
  return [...sums];
}

function failures(data) {
  const failed = data.report.run.failures, reports = data.report.failures || [];
  if (failed === 0) return;
  element("oom").hidden = false;
  for (const { report, requested, category, pool, owner, at_ns, advice, answers } of reports) {
    const subject = report && report.subject ? " for [" + report.subject.extents.join(", ") + "] of " + report.subject.element : "";
    const box = make("div");
    box.append(make("p", bytes(requested) + " (" + worded(category) + ") requested of " + pool + " by " +
      (owner || "no op") + subject + " after " + time(at_ns) + (advice ? ": " + advice : ""), { class: "warning" }));
    element("oom-list").append(box);
    if (!report) continue;
    box.append(make("p", oom_facts(report).join(", ")));
    const answered = wanted => answers.filter(([, fits]) => fits === wanted).map(([what]) => what).join("; ");
    if (answered(true)) box.append(make("p", "It would have fitted " + answered(true) + "."));
    if (answered(false)) box.append(make("p", "It would not have fitted " + answered(false) + ".", { class: "quiet" }));
    const of = report.budget ? report.budget.live : report.in_use;
    const module = holding => holding.owner.split(".").slice(0, -1).join(".") || "(outside of modules)";
    const kinds = [["by op", "op", held_by(report, holding => holding.owner)], ["by module", "module", held_by(report, module)],
      ["by category", "category", held_by(report, holding => worded(holding.category))]];
    const group = make("span", undefined, { role: "group" }), controls = make("div", undefined, { class: "controls" }), place = make("div");
    controls.append(group);
    box.append(controls, place);
    choice(group, kinds.map(([label, heading, rows]) => [label, [heading, rows]]),
      ([heading, rows]) => place.replaceChildren(holders_table(heading, rows, of)));
  }
  const more = failed - reports.length;
  if (more > 0) element("oom-list").append(make("p", "and " + count(more) + " more requests", { class: "quiet" }));
}
