//! A chart of live bytes by category over time.
//!
//! The chart has a fixed number of columns, regardless of the length of the run. A column shows the moment
//! with the most live bytes within its time. No peak is lost, and the parts of a column add up. Curves are
//! steps, because memory changes in steps.

use std::fmt::Write as _;
use std::io::Write;

use bfc_core::{Bytes, Category};
use highwater_files::markup::escaped;
use highwater_tracking::{Moment, Recording, category_colors};

use super::{ExportError, Output};

const WIDTH: u32 = 1000;
const HEIGHT: u32 = 420;
/// The area of the curves: left, top and size. One column per unit of width.
const LEFT: u32 = 80;
const TOP: u32 = 70;
const COLUMNS: u32 = 890;
const ROWS: u32 = 300;

/// From the bottom up, as on the page: persistent categories first, short-lived ones last.
const ORDER: [Category; Category::COUNT] = [
    Category::Mapped,
    Category::Parameter,
    Category::OptimizerState,
    Category::Gradient,
    Category::Activation,
    Category::Input,
    Category::Output,
    Category::Communication,
    Category::Workspace,
    Category::Temporary,
];

const STYLE: &str = "text{font:13px sans-serif;fill:#222}.title{font-weight:bold;font-size:15px}\
                     .ground{fill:#fff}.line{stroke:#888;stroke-opacity:.4}.peak{stroke:#222;stroke-dasharray:4 3}";
const DARK_STYLE: &str = "text{fill:#ddd}.ground{fill:#181818}.peak{stroke:#ddd}";

pub(super) fn write<W: Write>(recording: &Recording, out: &mut Output<W>) -> Result<(), ExportError> {
    let mut picture = String::new();
    // Writing to a String cannot fail.
    let _ = draw(recording, &mut picture);
    out.flush(&mut picture.into_bytes())?;
    Ok(())
}

type Column = [u64; Category::COUNT];

/// The time of the first allocation: a program may record long before. 0 without one.
fn begin_ns(recording: &Recording) -> u64 {
    recording.timeline().next().map_or(0, |moment| moment.at_ns)
}

/// Live bytes in each column, by category.
fn columns(recording: &Recording) -> Vec<Column> {
    let begin = begin_ns(recording);
    let span = u128::from(recording.end_ns().saturating_sub(begin)) + 1;
    let column_of = |moment: &Moment| {
        (u128::from(moment.at_ns.saturating_sub(begin)) * u128::from(COLUMNS) / span) as usize
    };
    let mut columns: Vec<Column> = Vec::with_capacity(COLUMNS as usize);
    let sum = |column: &Column| column.iter().sum::<u64>();
    let mut last = Column::default();
    for moment in recording.timeline() {
        let column = column_of(&moment);
        // The level before applies to the start of this column and to columns without events.
        columns.resize(columns.len().max(column + 1), last);
        let shown = &mut columns[column];
        if moment.bytes > sum(shown) {
            *shown = moment.categories;
        }
        last = moment.categories;
    }
    columns.resize(COLUMNS as usize, last);
    columns
}

fn draw(recording: &Recording, out: &mut String) -> std::fmt::Result {
    let columns = columns(recording);
    let peak = recording.peak().map_or(0, |peak| peak.bytes);
    let (tick, top) = scale(peak);
    let row = |bytes: u64| f64::from(TOP + ROWS) - bytes as f64 / top as f64 * f64::from(ROWS);

    let dark = ORDER.map(|category| format!(".{}{{fill:{}}}", category.name(), category_colors(category)[1]));
    write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n<style>{STYLE}\
         @media(prefers-color-scheme:dark){{{DARK_STYLE}{}}}</style>\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n",
        dark.concat()
    )?;
    let program = match recording.facts().program.as_str() {
        "" => "Live bytes",
        program => program,
    };
    writeln!(
        out,
        "<text class=\"title\" x=\"{LEFT}\" y=\"24\">{}: peak {}</text>",
        escaped(program),
        Bytes(peak)
    )?;
    draw_legend(&columns, out)?;

    let mut below: Vec<u64> = vec![0; columns.len()];
    for category in ORDER {
        if columns.iter().all(|column| column[category.index()] == 0) {
            continue;
        }
        let above: Vec<u64> =
            below.iter().zip(&columns).map(|(below, column)| below + column[category.index()]).collect();
        let (name, [light, _]) = (category.name(), category_colors(category));
        write!(out, "<path class=\"{name}\" fill=\"{light}\" d=\"M{LEFT} {:.1}", row(below[0]))?;
        draw_steps(&above, row, out, false)?;
        draw_steps(&below, row, out, true)?;
        writeln!(out, "z\"><title>{name}</title></path>")?;
        below = above;
    }

    for bytes in (0..=top / tick).map(|ticks| ticks * tick) {
        let (y, right) = (row(bytes), LEFT + COLUMNS);
        writeln!(out, "<path class=\"line\" d=\"M{LEFT} {y:.1}H{right}\"/>")?;
        let label = if bytes == 0 { "0".to_owned() } else { Bytes(bytes).to_string() };
        writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 8, y + 4.0)?;
    }
    let begin = begin_ns(recording);
    let [from, to] = [begin, recording.end_ns()].map(|ns| ns as f64 / 1e9);
    for part in 0..=4_u32 {
        let (x, y) = (LEFT + COLUMNS * part / 4, TOP + ROWS + 22);
        let time = seconds_text(from + (to - from) * f64::from(part) / 4.0, to);
        writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{time}</text>")?;
    }
    if let Some(peak) = recording.peak() {
        let of_run = |ns: u64| ns.saturating_sub(begin) as f64;
        let share = of_run(recording.time_of(peak.event)) / (of_run(recording.end_ns()) + 1.0);
        let (x, y) = (f64::from(LEFT) + share * f64::from(COLUMNS), row(peak.bytes));
        writeln!(out, "<path class=\"peak\" d=\"M{x:.1} {y:.1}V{}\"><title>peak</title></path>", TOP + ROWS)?;
    }
    out.push_str("</svg>\n");
    Ok(())
}

/// Writes the upper edge from left to right, or the lower edge back.
fn draw_steps(bytes: &[u64], row: impl Fn(u64) -> f64, out: &mut String, back: bool) -> std::fmt::Result {
    let count = bytes.len();
    let mut index = 0;
    while index < count {
        let at = |index: usize| if back { count - 1 - index } else { index };
        let level = bytes[at(index)];
        let run = (index..count).take_while(|&index| bytes[at(index)] == level).count();
        index += run;
        let x = LEFT as usize + if back { count - index } else { index };
        write!(out, "V{:.1}H{x}", row(level))?;
    }
    Ok(())
}

fn draw_legend(columns: &[Column], out: &mut String) -> std::fmt::Result {
    let mut x = LEFT;
    for category in ORDER {
        let most = columns.iter().map(|column| column[category.index()]).max().unwrap_or(0);
        if most == 0 {
            continue;
        }
        let (name, [light, _]) = (category.name(), category_colors(category));
        let place = format!("x=\"{x}\" y=\"40\" width=\"12\" height=\"12\"");
        writeln!(out, "<rect class=\"{name}\" fill=\"{light}\" {place}/>")?;
        writeln!(out, "<text x=\"{}\" y=\"51\">{name}</text>", x + 17)?;
        // Letters are about seven units wide.
        x += 34 + 7 * name.len() as u32;
    }
    Ok(())
}

/// Returns the distance of the grid lines, a power of two of bytes, and the height of the topmost.
fn scale(peak: u64) -> (u64, u64) {
    let mut tick = 1_u64;
    for shift in 0..63 {
        tick = 1 << shift;
        if tick.saturating_mul(6) >= peak {
            break;
        }
    }
    (tick, peak.div_ceil(tick).max(1).saturating_mul(tick))
}

/// Formats a time of a run of this many seconds.
fn seconds_text(time: f64, whole: f64) -> String {
    match whole {
        _ if time == 0.0 => "0".to_owned(),
        ..1e-3 => format!("{:.1} µs", time * 1e6),
        ..1.0 => format!("{:.1} ms", time * 1e3),
        _ => format!("{time:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use highwater_tracking::write_page;

    use super::*;

    #[test]
    fn colors_and_order_are_those_of_the_page() {
        let all = ORDER.map(category_colors);
        for [light, dark] in all {
            for color in [light, dark] {
                let is_color = color.len() == 7 && u32::from_str_radix(&color[1..], 16).is_ok();
                assert!(color.starts_with('#') && is_color, "{color}");
            }
            assert_eq!(all.iter().filter(|other| other.contains(&light) || other.contains(&dark)).count(), 1);
        }
        let names = ORDER.map(|category| format!("\"{}\"", category.name())).join(", ");
        let mut page = Vec::new();
        write_page(&Recording::default(), None, &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains(&format!("const STACK = [{names}];")), "{names}");

        let mut picture = String::new();
        draw(&Recording::default(), &mut picture).unwrap();
        assert!(picture.contains(&format!(".parameter{{fill:{}}}", category_colors(Category::Parameter)[1])));
    }

    #[test]
    fn the_scale_reaches_above_the_peak_with_few_lines() {
        assert_eq!(scale(0), (1, 1));
        assert_eq!(scale(6), (1, 6));
        assert_eq!(scale(7), (2, 8));
        assert_eq!(scale(1_650_000), (1 << 19, 4 << 19));
        for peak in [1, 1000, 1 << 40, u64::MAX / 2, u64::MAX] {
            let (tick, top) = scale(peak);
            assert!(top >= peak && top / tick <= 8, "{peak}: {tick} {top}");
        }
    }
}
