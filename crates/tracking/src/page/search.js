// Fills a page that shows only the plans of a search.

start(data => {
  const { device, rows, chosen, limit } = read_plans(data.plans);
  element("title").textContent = device + ": which plans fit";
  if (chosen) {
    add_figure("chosen plan", chosen.plan, chosen.limited_by ? "limited by " + chosen.limited_by : "");
    add_figure("peak", bytes(chosen.peak_bytes), limit ? share(chosen.peak_bytes / limit) + " of the device" : "");
    add_figure("step", time_or_dash(chosen.ns), rate(chosen.samples_per_second) + " samples/s");
  }
  if (limit) add_figure("limit", bytes(limit), device);
  add_figure("plans", count(rows.length), count(rows.filter(row => row.fits).length) + " fit");
  plans(data);
});
