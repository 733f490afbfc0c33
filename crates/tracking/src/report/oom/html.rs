//! The report as a page of its own: no script, no network.

use bfc_core::{Bytes, OomReport};

use super::{Answer, OutOfMemory};
use crate::page::{STYLE, escaped};

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

pub(super) fn page(report: &OutOfMemory) -> String {
    let mut page = format!("{HEAD}{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>Out of memory</h1>\n");
    page += &format!("<p class=\"warning\">{}</p>\n", escaped(&report.advice));
    page += &format!("<p>{}</p>\n</header>\n<main>\n", escaped(&report.asked()));
    page += "<dl id=\"figures\">\n";
    for (name, figure) in report.figures() {
        page += &format!("<div><dt>{name}</dt><dd>{}</dd></div>\n", escaped(&figure));
    }
    page += "</dl>\n";
    if !report.what_if.is_empty() {
        let rows = report.what_if.iter().map(|Answer { what, fits }| {
            [escaped(what), if *fits { "it would fit" } else { "it would not fit" }.to_owned()]
        });
        page += &table("What if", ["tried on a copy of the pool", ""], rows);
    }
    for (kind, holders) in report.holders() {
        let all = holders.iter().map(|holder| holder.bytes).sum::<u64>().max(1) as f64;
        let rows = holders.iter().map(|holder| {
            let bytes = holder.bytes;
            let share = bytes as f64 / all * 100.0;
            [escaped(&holder.shown(kind)), format!("{} ({share:.1} %)", Bytes(bytes))]
        });
        if !holders.is_empty() {
            page += &table(&format!("Held by {kind}"), ["who", "live then"], rows);
        }
    }
    if report.shape.is_some() {
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
