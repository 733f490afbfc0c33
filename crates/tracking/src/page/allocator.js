// Facts about the allocator: the causes of the difference between reserved and requested bytes, and other settings.

function gap_table(data) {
  const gaps = data.allocator ? data.allocator.gaps : [];
  element("gap-section").hidden = gaps.length === 0;
  if (gaps.length === 0) return;
  element("gap-note").textContent = data.allocator.allocator + " reserves memory in segments. These causes sum up to what it reserves beyond the requested bytes: " +
    gaps.map(gap => gap.moment + " at " + time(gap.at_ns, view.end)).join(", ") + ".";
  const column = byte_columns(gaps.map(gap => gap.reserved));
  const difference = gap => gap.reserved - gap.requested;
  const bytes_of = (gap, name) => gap.causes.reduce((sum, cause) => cause.name === name ? sum + cause.bytes : sum, 0);
  const names = [...new Set(gaps.flatMap(gap => gap.causes.map(cause => cause.name)))].filter(name => gaps.some(gap => bytes_of(gap, name) > 0));
  const rows = [
    ...names.map(name => ({ name, of: gap => bytes_of(gap, name), has_share: true })),
    { name: "reserved, not requested", of: difference, has_share: true, is_sum: true },
    { name: "requested", of: gap => gap.requested },
    { name: "reserved", of: gap => gap.reserved, is_sum: true },
  ];
  const columns = gaps.flatMap(gap => {
    const [heading, , text] = column(gap.moment, row => row.of(gap));
    const part = row => row.has_share ? share(row.of(gap) / Math.max(difference(gap), 1)) : "";
    return [[heading, null, text], ["share", null, part]];
  });
  sortable(element("gap"), [["cause", null, row => row.name], ...columns], null, (line, row) => {
    if (row.is_sum) line.className = "marked";
  })(rows);
  keepers_table(data.allocator.keepers, gaps[0]);
}

/** The owners of blocks that keep nearly empty segments. */
function keepers_table(rows, gap) {
  element("keepers-part").hidden = rows.length === 0;
  element("keepers-note").textContent = "Segments with a live block stay reserved. A segment counts for the owner of its largest block; at the moment of the " + gap.moment + ".";
  const column = byte_columns(rows.flatMap(row => [row.free_bytes, row.block_bytes]));
  sortable(element("keepers"), [
    ["holder", row => row.owner, row => row.owner || "(outside of ops)"],
    ["category", row => worded(row.category), row => worded(row.category), { kind: "name" }],
    ["segments", row => row.regions, row => count(row.regions)],
    column("blocks", row => row.block_bytes, "bytes of the blocks in these segments"),
    column("free", row => row.free_bytes, "free bytes in these segments"),
  ], 4)(rows);
}

function options_table(data) {
  const facts = data.allocator || { options: [], notes: [], settings: [] }, { options: rows } = facts;
  const is_empty = rows.length + facts.settings.length + facts.notes.length === 0;
  element("options-section").hidden = is_empty;
  if (is_empty) return;
  element("options-note").textContent = rows.length === 0 ? ""
    : "Each row is an exact replay of the run's allocations and frees with these settings, compared with the recorded settings. The marked settings are advised.";
  const column = byte_columns(rows.flatMap(row => [row.peak_reserved || 0, row.end_reserved || 0]));
  /** A column of shares, if a row has one. */
  const removed = (heading, of) => rows.some(row => of(row) !== null)
    ? [[heading, row => of(row) ?? -Infinity, row => of(row) === null ? "–" : share(of(row))]] : [];
  const name = row => {
    const cell = document.createDocumentFragment();
    cell.append(row.settings || "defaults");
    if (row.is_recorded) cell.append(make("small", "recorded"));
    return cell;
  };
  if (rows.length > 0) sortable(element("options"), [
    ["settings", row => row.settings || "defaults", name],
    column("peak reserved", row => row.peak_reserved ?? 0),
    ...removed("difference removed", row => row.peak_gap_removed),
    ...(rows.some(row => row.end_reserved !== null) ? [column("reserved at the end", row => row.end_reserved ?? 0)] : []),
    ...removed("removed at the end", row => row.end_gap_removed),
    ...(rows.some(row => row.note) ? [["remark", null, row => row.note, { kind: "name" }]] : []),
  ], null, (line, row) => { if (row.is_best) line.className = "chosen"; })(rows);
  const recorded = facts.settings.filter(([, value]) => value).map(([name, value]) => name + " " + value).join(", ");
  element("options-recorded").textContent = [...facts.notes, ...(recorded ? ["Settings of the run: " + recorded + "."] : [])].join(" ");
}
