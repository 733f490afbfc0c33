//! The report of a request that ran out of memory as an HTML page: no script, no network.

use bfc_core::{Bytes, OomReport};
use highwater_files::markup::escaped;

use super::STYLE;

const HEAD: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>Out of memory</title>
<style>
"#;

/// Formats the report of a request that ran out of memory as a self-contained HTML page.
///
/// ```
/// use bfc_core::{OomReport, Request, Verdict};
/// let report = OomReport::new("cpu:0", &Request::new(1024), Verdict::Exhausted);
/// assert!(highwater_tracking::oom_page(&report).starts_with("<!doctype html>"));
/// ```
#[must_use]
pub fn oom_page(report: &OomReport) -> String {
    let mut page = format!("{HEAD}{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>Out of memory</h1>\n");
    page += &format!("<p class=\"warning\">{}</p>\n", escaped(&report.advice()));
    let request = format!("{}: {}", report.allocator, report.request());
    page += &format!("<p>{}</p>\n</header>\n<main>\n", escaped(&request));
    page += "<dl id=\"figures\">\n";
    for (name, figure, note) in report.figures() {
        let note = if note.is_empty() { note } else { format!("<small>{}</small>", escaped(&note)) };
        page += &format!("<div><dt>{name}</dt><dd>{figure}{note}</dd></div>\n");
    }
    page += "</dl>\n";
    let answers = report.what_if.answers();
    if !answers.is_empty() {
        let rows = answers.iter().map(|(what, fits)| {
            [escaped(what), if *fits { "it would fit" } else { "it would not fit" }.to_owned()]
        });
        page += &table("What if", ["tried on a copy of the pool", ""], rows);
    }
    for (kind, holders) in report.held_by() {
        let all = holders.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes)).max(1) as f64;
        let rows = holders.iter().map(|(name, bytes)| {
            let share = *bytes as f64 / all * 100.0;
            [escaped(name), format!("{} ({share:.1} %)", Bytes(*bytes))]
        });
        if !holders.is_empty() {
            page += &table(&format!("Held by {kind}"), ["holder", "live"], rows);
        }
    }
    if report.subject.is_some() {
        page += &format!("<p class=\"quiet\">{}</p>\n", OomReport::BATCH_HINT);
    }
    page + "</main>\n</body>\n</html>\n"
}

/// A section with a table. The cells are HTML.
fn table(title: &str, heads: [&str; 2], rows: impl Iterator<Item = [String; 2]>) -> String {
    let [left, right] = heads;
    let mut table = format!(
        "<section>\n<h2>{title}</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">{left}</th>\
         <th scope=\"col\">{right}</th></tr></thead>\n<tbody>\n"
    );
    for [left, right] in rows {
        table += &format!("<tr><td>{left}</td><td>{right}</td></tr>\n");
    }
    table + "</tbody>\n</table></div>\n</section>\n"
}

#[cfg(test)]
mod tests;
