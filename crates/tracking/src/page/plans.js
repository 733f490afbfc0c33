// The plans of a search: what was chosen, the picture, and a table. Pointing at a plan in one marks it in the other.

/** Seconds as nanoseconds; NaN if they are no time. JSON has null for infinite numbers. */
const step_ns = seconds => seconds === null || seconds < 0 || !Number.isFinite(seconds * 1e9) ? NaN : seconds * 1e9;

const time_or_dash = ns => Number.isNaN(ns) ? "–" : time(ns);

/** Samples per second with four digits, also zeros, so that a column of them is aligned. */
function rate(value) {
  if (value === null) return "–";
  return value < 1e9 ? value.toFixed(value < 9.9995 ? 3 : value < 99.995 ? 2 : value < 999.95 ? 1 : 0) : value.toExponential(2);
}

/** The plans as the page uses them, from their JSON. */
function read_plans({ device, limit_bytes, rows, chosen, measured_peak_bytes, measured_seconds, notes }) {
  const kind = (row, index) => index === chosen ? "chosen" : !row.fits ? "unfit" : row.is_on_front ? "front" : "other";
  const read = rows.map((row, index) => ({ ...row, index, ns: step_ns(row.seconds), kind: kind(row, index) }));
  return {
    device: device || "a device", rows: read, chosen: read.find(row => row.kind === "chosen") || null,
    limit: limit_bytes || null, measured_peak: measured_peak_bytes, measured_ns: step_ns(measured_seconds),
    notes: notes || [],
  };
}

/** Compares what a run measured with the chosen plan. */
function measured_facts({ chosen, measured_peak, measured_ns }) {
  const facts = [];
  if (chosen && measured_peak !== null) {
    const more = measured_peak - chosen.peak_bytes;
    facts.push("The run's peak was " + bytes(measured_peak) + ", " + (more === 0 ? "exactly the predicted " + count(chosen.peak_bytes) + " bytes"
      : bytes(Math.abs(more)) + (more > 0 ? " more" : " less") + " than predicted") + ".");
  }
  if (chosen && !Number.isNaN(measured_ns)) facts.push("A step took " + time(measured_ns) + ", estimated " + time_or_dash(chosen.ns) + ".");
  return facts;
}

function plans_legend({ rows, measured_peak, measured_ns }) {
  const has_kind = kind => rows.some(row => row.kind === kind && !Number.isNaN(row.ns));
  const names = [["chosen", "chosen plan"], ["front", "on the Pareto front"], ["other", "other plan"], ["unfit", "does not fit"]]
    .filter(([kind]) => has_kind(kind));
  if (measured_peak !== null && !Number.isNaN(measured_ns)) names.push(["measured", "measured in the run"]);
  element("plans-legend").append(...names.map(([kind, name]) => {
    const line = make("li"), picture = shape("svg", { class: "plan-key", width: 22, height: 22, "aria-hidden": "true" });
    picture.append(plan_mark(kind, 11, 11));
    line.append(picture, make("span", name));
    return line;
  }));
}

/** Fills the table. Returns a function that marks the line of a plan and scrolls to it. */
function plans_table({ rows, limit }, tell) {
  const lines = new Map(), box = element("plans-table").parentElement;
  let marked = null;
  const name = row => {
    const words = [row.kind === "chosen" ? "chosen" : "", row.fits ? "" : "does not fit"].filter(word => word);
    const cell = make("span", row.plan);
    if (words.length > 0) cell.append(make("small", words.join(", ")));
    return cell;
  };
  const last = value => value === null ? Infinity : value;
  sortable(element("plans-table"), [
    ["plan", row => row.plan, name],
    ["peak", row => row.peak_bytes, row => bytes(row.peak_bytes)],
    ...(limit ? [["share", row => row.peak_bytes, row => share(row.peak_bytes / limit)]] : []),
    ["step", row => last(row.seconds), row => time_or_dash(row.ns)],
    ["samples/s", row => last(row.samples_per_second), row => rate(row.samples_per_second)],
    ["limited by", row => row.limited_by, row => row.limited_by || "–", { kind: "name" }],
  ], null, (line, row) => {
    line.className = row.kind;
    line.addEventListener("pointerenter", () => tell(row, false));
    line.addEventListener("pointerleave", () => tell(null, false));
    lines.set(row, line);
  })(rows);

  return (row, follow) => {
    if (marked) lines.get(marked).classList.remove("marked");
    marked = row;
    if (!row) return;
    const line = lines.get(row), top = line.offsetTop - box.querySelector("thead").offsetHeight;
    line.classList.add("marked");
    const is_seen = top >= box.scrollTop && line.offsetTop + line.offsetHeight <= box.scrollTop + box.clientHeight;
    if (follow && !is_seen) box.scrollTop = top;
  };
}

function plans(data) {
  if (!data.plans) return;
  element("plans").hidden = false;
  const found = read_plans(data.plans), { rows, limit, chosen } = found;
  const fitting = rows.filter(row => row.fits).length, undrawn = rows.filter(row => Number.isNaN(row.ns)).length;
  const is_below = row => limit !== null && row.peak_bytes <= limit, below = rows.filter(row => !row.fits && is_below(row)).length;
  const of = " for " + found.device + (limit ? " with " + bytes(limit) : "");
  element("plans-facts").textContent = [
    count(rows.length) + (rows.length === 1 ? " plan" : " plans") + of + "; " + count(fitting) + (fitting === 1 ? " fits." : " fit."),
    ...measured_facts(found),
  ].join(" ");

  const sentence = row => {
    const exact = count(row.peak_bytes) + " bytes" + (limit ? ", " + share(row.peak_bytes / limit) + " of the device" : "");
    const facts = ["peak " + bytes(row.peak_bytes) + " (" + exact + ")", time_or_dash(row.ns) + " per step"];
    if (row.samples_per_second !== null) facts.push(rate(row.samples_per_second) + " samples/s");
    if (row.limited_by) facts.push("limited by " + row.limited_by);
    if (!row.fits) facts.push("does not fit" + (is_below(row) ? ": a dry run with the limit ran out of memory" : ""));
    return (row === chosen ? "Chosen: " : "") + row.plan + ": " + facts.join(", ");
  };
  /** Says which plan the reader points at, or which one was chosen. */
  const tell = (row, follow = true) => {
    const shown = row || chosen;
    element("plans-readout").textContent = shown ? sentence(shown) : "";
    mark_point(row);
    mark_line(row, follow);
  };
  const mark_line = plans_table(found, tell), mark_point = plans_chart(found, tell);
  plans_legend(found);
  const notes = [...found.notes];
  if (below > 0) {
    notes.push(count(below) + (below === 1 ? " plan does" : " plans do") + " not fit, although the peak is below the limit: a dry run with the limit ran out of memory, " +
      "because no piece of free memory was large enough, or because a later step or an evaluation needed more.");
  }
  if (undrawn > 0) {
    notes.push(count(undrawn) + (undrawn === 1 ? " plan has" : " plans have") + " no step time: only the table has " + (undrawn === 1 ? "it." : "them."));
  }
  element("plans-note").textContent = notes.join(" ");
  tell(null);
}
