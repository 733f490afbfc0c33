"""Opens pages in a headless browser: see scripts/check-pages and scripts/page-pictures.

    check_pages.py check FILE.html...
    check_pages.py picture FILE.html OUT.png WIDTH HEIGHT light|dark [full]

`check` opens each page at two widths, and changes between light and dark. It clicks every button and heading, hovers,
zooms and drags over the charts, chooses moments and segments, and fails on:

- an error or a message on the console, an exception, or a request to anything but the file;
- a page that is wider than its window;
- a heading that is not aligned with its cells, or whose arrow does not match the order of the cells;
- a cell that makes its row higher, unless it is the first one; a blank chart;
- a slider or a key that changes nothing.

The browser is `chromium` on the PATH, or $CHROMIUM.
"""

import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

# Widths, and the color scheme at the beginning and after a change.
WINDOWS = ((400, ("light", "dark")), (1200, ("dark", "light")))
# A page that does not settle within this time has failed.
TIMEOUT_MS = 10_000

# Functions for the page: `settle` waits until its scripts have drawn, `faults` returns what is wrong with its appearance.
IN_PAGE = r"""
window.settle = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));

const is_shown = element => element.getClientRects().length > 0;
const shown = selector => [...document.querySelectorAll(selector)].filter(is_shown);

// The number that a cell shows, in bytes, nanoseconds or its own unit; undefined for other text.
const UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ns: 1, "µs": 1e3, ms: 1e6, s: 1e9, "%": 1, "": 1 };
const number = text => {
  const found = /^<?(-?[\d\s]*\.?\d+(?:e[+-]?\d+)?) ?(B|[KMGT]iB|ns|µs|ms|s|%|)$/.exec(text.trim());
  return found ? Number(found[1].replace(/\s/g, "")) * UNITS[found[2]] : undefined;
};

function table_faults(table) {
  const faults = [], heads = [...table.querySelectorAll("thead th")], lines = [...table.querySelectorAll("tbody tr")];
  const cells = index => lines.map(line => line.cells[index]);
  const align = cell => getComputedStyle(cell).textAlign.replace("start", "left");
  heads.forEach((head, index) => {
    const name = table.id + ", column " + JSON.stringify(head.textContent);
    if (cells(index).some(cell => align(cell) !== align(head))) faults.push(name + ": the heading is not aligned with its cells");
    if (index > 0) {
      const is_high = cell => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1;
      };
      if (cells(index).some(is_high)) faults.push(name + ": a cell has several lines");
    }
    const sort = head.getAttribute("aria-sort"), arrow = { ascending: "▴", descending: "▾" }[sort] || "";
    if ((/[▴▾]/.exec(head.textContent) || [""])[0] !== arrow) faults.push(name + ": the arrow is not that of " + sort);
    if (!sort) return;
    const text = cell => (cell.querySelector("small")?.previousSibling || cell).textContent;
    const is_text = index === 0 || head.classList.contains("name");
    const values = cells(index).map(cell => is_text ? text(cell) : number(text(cell))).filter(value => value !== undefined);
    const difference = (a, b) => is_text ? a.localeCompare(b, "en", { numeric: true }) : a - b;
    const sign = sort === "ascending" ? 1 : -1;
    if (values.some((value, at) => at > 0 && difference(value, values[at - 1]) * sign < 0)) faults.push(name + ": the order is not " + sort);
  });
  return faults;
}

window.faults = () => {
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  return [...(wide > 0 ? [wide + " pixels wider than the window"] : []), ...shown("table").flatMap(table_faults)];
};

// Reads a copy, because reading a canvas slows it down from then on.
const is_blank = canvas => {
  const { width, height } = canvas;
  const context = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d");
  context.drawImage(canvas, 0, 0);
  return !context.getImageData(0, 0, width, height).data.some(byte => byte > 0);
};
window.blank_charts = () => shown("canvas").filter(is_blank).map(canvas => canvas.id + " is blank");

// The pictures of all charts, by their names.
window.pictures = () => Object.fromEntries(shown("canvas").map(canvas => [canvas.id, canvas.toDataURL()]));

// Clicks every button twice, from top to bottom, and returns the faults that clicks add. Buttons that a click adds count too.
window.click_all = async () => {
  const known = new Set(window.faults()), faults = [], done = new Set();
  const key = button => (button.closest("table, section")?.id || "") + button.textContent.replace(/ [▴▾]$/, "") + (button.dataset.do || "");
  for (;;) {
    const next = shown("button").find(button => !done.has(key(button)));
    if (!next) return faults;
    const name = key(next);
    done.add(name);
    for (let click = 0; click < 2; click++) {
      const button = shown("button").find(button => key(button) === name);
      if (!button) break;
      button.click();
      await settle();
      for (const fault of window.faults().filter(fault => !known.has(fault))) {
        known.add(fault);
        faults.push("after a click on " + JSON.stringify(name) + ": " + fault);
      }
    }
  }
};
"""


@contextmanager
def browser():
    """Starts the browser."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not chromium:
        sys.exit("chromium is missing: install it, or set CHROMIUM to its path")
    with sync_playwright() as tools:
        started = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def opened(started, path, width, height, scheme):
    """Opens a page, and yields it with the list of its problems, which grows."""
    size = {"width": width, "height": height}
    context = started.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1)
    context.set_default_timeout(TIMEOUT_MS)
    context.add_init_script(IN_PAGE)
    page = context.new_page()
    problems = []
    page.on("console", lambda message: problems.append("console: " + message.text))
    page.on("pageerror", lambda error: problems.append("exception: " + str(error)))
    page.on("request", lambda request: request.url.startswith("file:") or problems.append("request: " + request.url))
    page.goto(Path(path).resolve().as_uri())
    page.wait_for_function("!document.getElementById('title') || document.getElementById('title').textContent")
    page.evaluate("settle()")
    if page.locator("#title", has_text="could not be drawn").count():
        problems.append(page.locator("#notes").text_content())
    yield page, problems
    context.close()


def use_charts(page):
    """Hovers, zooms, drags and moves with keys over every chart."""
    for chart in page.locator("canvas, svg#plans-chart").all():
        if not chart.is_visible():
            continue
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        across = [box["x"] + box["width"] * part for part in (0.02, 0.25, 0.5, 0.75, 0.98)]
        down = [box["y"] + box["height"] * part for part in (0.05, 0.5, 0.95)]
        for x in across:
            for y in down:
                page.mouse.move(x, y)
        page.mouse.wheel(0, -240)
        page.mouse.move(across[1], down[1])
        page.mouse.down()
        page.mouse.move(across[3], down[1], steps=4)
        page.mouse.up()
        if chart.get_attribute("tabindex") is not None:
            chart.focus()
            for key in ("ArrowLeft", "ArrowRight", "+", "-", "Home", "End"):
                page.keyboard.press(key)
        page.evaluate("settle()")
        page.mouse.dblclick(across[2], down[1])
    page.evaluate("settle()")


def use_segments(page):
    """Chooses a moment with a click in the timeline and with the slider, and rows with keys; returns what is wrong."""
    if not page.locator("#segments").is_visible():
        return []
    found = []
    read = lambda selector: page.locator(selector).text_content()
    page.locator("#timeline").click(position={"x": 200, "y": 100})
    page.locator("#moment").focus()
    page.keyboard.press("End")
    page.evaluate("settle()")
    end = read("#moment-shown")
    page.keyboard.press("Home")
    page.evaluate("settle()")
    if read("#moment-shown") == end:
        found.append("the slider does not change the moment of the segments")
    page.keyboard.press("End")
    page.evaluate("settle()")
    page.locator("#segments").focus()
    told = set()
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowUp", "End"):
        page.keyboard.press(key)
        page.evaluate("settle()")
        told.add(read("#segments-readout"))
    if "" in told:
        found.append("a key does not describe a segment")
    return found


def check(started, path):
    """Returns the problems of a page."""
    found = []
    for width, (scheme, other) in WINDOWS:
        with opened(started, path, width, 900, scheme) as (page, problems):
            problems += page.evaluate("faults()") + page.evaluate("blank_charts()")
            use_charts(page)
            problems += use_segments(page) + page.evaluate("click_all()")
            before = page.evaluate("pictures()")
            page.emulate_media(color_scheme=other)
            page.evaluate("settle()")
            after = page.evaluate("pictures()")
            problems += [f"{name} has the colors of the other scheme" for name in before if before[name] == after[name]]
            use_charts(page)
            problems += page.evaluate("faults()") + page.evaluate("blank_charts()")
            found += [f"{path}, {width} pixels, {scheme}, then {other}: {problem}" for problem in dict.fromkeys(problems)]
    return found


def picture(started, path, out, width, height, scheme, full=""):
    """Draws a page, `light` or `dark`."""
    with opened(started, path, int(width), int(height), scheme) as (page, problems):
        page.screenshot(path=out, full_page=full == "full")
        return problems + page.evaluate("faults()")


def main():
    command, *arguments = sys.argv[1:]
    with browser() as started:
        if command == "picture":
            problems = picture(started, *arguments)
        else:
            problems = [problem for path in arguments for problem in check(started, path)]
    if problems:
        sys.exit("\n".join(problems))
    print(f"{command}: {', '.join(arguments)}")


if __name__ == "__main__":
    main()
