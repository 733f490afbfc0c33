// Reads the data and fills the page.

function head(data) {
  const { run, pools, peak_parts: parts } = data.report, { facts } = run;
  element("title").textContent = (facts.program || "A run") + ": where the memory went";
  const begun = facts.started_unix_ms ? [["begun", new Date(facts.started_unix_ms).toISOString().slice(0, 19).replace("T", " ") + " UTC"]] : [];
  element("facts").textContent = [...facts.more, ...begun].map(fact => fact.join(" ")).join(" · ");
  const peak = data.timeline.peak;
  if (peak !== null) {
    const at = sums(data.timeline.at_ns)[peak];
    add_figure("peak", bytes(parts.bytes), "after " + time(at) + " in " + (data.names[data.timeline.op[peak]] || "no op"));
  }
  for (const pool of pools) {
    add_figure("reserved by " + pool.name, bytes(pool.peak_reserved), pool.limit === null ? "no limit" : "limit " + bytes(pool.limit));
  }
  if (data.reserved) {
    const { peak_bytes, gap } = data.reserved;
    if (pools.length === 0) add_figure("reserved", bytes(peak_bytes), "at most");
    add_figure("largest difference", bytes(Math.max(gap.reserved - gap.live, 0)), bytes(gap.reserved) + " reserved after " + time(gap.at_ns));
  }
  for (const row of data.report.outside || []) {
    const most = row.peak_bytes ? ", peak " + bytes(row.peak_bytes) : "";
    add_figure(row.name, bytes(row.bytes), "outside the pools" + most);
  }
  const process = run.outside.peak_resident;
  if (process) add_figure("process", bytes(process), "at most, pools of host memory included");
  add_figure("events", count(run.events), count(run.blocks) + " blocks");
  add_figure("duration", time(run.duration_ns));
  const notes = [];
  if (run.cut) notes.push("The file ends early: " + run.cut.reason + " (byte " + run.cut.offset + ").");
  if (run.lost_events) notes.push(count(run.lost_events) + " events at the beginning were lost.");
  if (run.skipped_events) notes.push(count(run.skipped_events) + " events were left out, because their blocks were allocated before recording began.");
  const wrong = data.log && data.log.non_finite;
  if (wrong) {
    const values = wrong.count === 1 ? "One value of the log is" : count(wrong.count) + " values of the log are";
    notes.push(values + " NaN or infinite, first " + wrong.name + " at step " + count(wrong.step) + ". The curves have gaps there.");
  }
  element("notes").textContent = notes.join(" ");
  element("notes").hidden = notes.length === 0;
}

start(data => {
  const curves_at = data.log ? data.log.curves.map(curve => sums(curve.at_ns)) : [], marks_at = (data.report.marks || []).map(mark => mark.at_ns);
  view.end = Math.max(data.report.run.duration_ns, 100, ...curves_at.map(at => at[at.length - 1]));
  // A program may record long before its first op. The first differences are the first times.
  const begins = [...data.timeline.at_ns.slice(0, 1), ...curves_at.map(at => at[0]), ...marks_at.slice(0, 1)];
  view.begin = begins.length === 0 ? 0 : Math.max(Math.min(...begins, view.end - 100), 0);
  [view.from, view.to] = [view.begin, view.end];
  head(data);
  plans(data);
  curves(data);
  timeline(data);
  gap_table(data);
  options_table(data);
  map(data);
  segments(data);
  parts_table(data);
  holders_tables(data);
  growth_table(data);
  marks_table(data);
  live_table(data);
  ops_table(data);
  failures(data);
  element("controls").addEventListener("click", event => { if (event.target.dataset.do) act(event.target.dataset.do); });
});
