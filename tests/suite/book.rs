//! The book in `docs/` and the other pages: order, links, programs and figures, and the list of files with unsafe code.
//!
//! Each test collects all faults, as `file:line: message`. `scripts/check-programs` builds the programs of the pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::sources::{sources, without_comments, without_tests};

const SUMMARY: &str = "docs/SUMMARY.md";
const BENCHMARKS: &str = "docs/benchmarks.md";
const MOST_CHAPTERS: usize = 22;
/// The beginning of `contributing/unsafe.md`.
const UNSAFE_HEAD: &str = "\
# Files with unsafe code

This list excludes tests, examples and benches. This command writes it:

    HIGHWATER_UPDATE_GOLDEN=1 cargo test -p highwater --test suite book::
";

/// A page of the repository.
struct Page {
    /// Relative to the root of the repository.
    path: String,
    /// The lines of the page; those of code blocks are empty.
    lines: Vec<String>,
    /// The same lines, with spaces in place of inline code.
    prose: Vec<String>,
    /// The line and the language of each code block, such as `rust,no_run`.
    blocks: Vec<(usize, String)>,
}

/// A table of a page.
struct Table {
    columns: Vec<String>,
    /// The line and the cells of each row.
    rows: Vec<(usize, Vec<String>)>,
}

impl Page {
    fn read(path: &str) -> Self {
        Self::new(path, &read(path))
    }

    fn new(path: &str, text: &str) -> Self {
        let (mut lines, mut blocks) = (Vec::new(), Vec::new());
        // The number of backticks that opened the present code block.
        let mut open = None;
        for (at, line) in text.lines().enumerate() {
            let language = line.trim_start().trim_start_matches('`');
            let marks = line.trim_start().len() - language.len();
            let is_fence = marks >= 3 && !language.contains('`');
            match open {
                None if is_fence => {
                    blocks.push((at + 1, language.trim().to_owned()));
                    open = Some(marks);
                }
                Some(length) if is_fence && marks >= length && language.trim().is_empty() => open = None,
                _ => {}
            }
            lines.push(if open.is_some() || is_fence { String::new() } else { line.to_owned() });
        }
        let prose = without_inline_code(&lines);
        Self { path: path.to_owned(), lines, prose, blocks }
    }

    /// Describes a fault at a line, which counts from 1.
    fn fault(&self, line: usize, message: &str) -> String {
        format!("{}:{line}: {message}", self.path)
    }

    /// The texts of the headings.
    fn headings(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| {
            let text = line.trim_start_matches('#');
            (1..=6).contains(&(line.len() - text.len())).then_some(text)?.strip_prefix(' ').map(str::trim)
        })
    }

    /// The anchors of the headings, as GitHub and mdBook name them.
    fn anchors(&self) -> BTreeSet<String> {
        let mut anchors: BTreeSet<String> = BTreeSet::new();
        for heading in self.headings() {
            let slug = slug(heading);
            let numbered = (1..).map(|number| format!("{slug}-{number}"));
            let anchor = std::iter::once(slug.clone()).chain(numbered).find(|name| !anchors.contains(name));
            anchors.extend(anchor);
        }
        anchors
    }

    /// The line and the target of each link, image and link definition.
    fn links(&self) -> Vec<(usize, &str)> {
        let mut links = Vec::new();
        for (at, line) in self.prose.iter().enumerate() {
            let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
            let html = ["src=\"", "href=\""]
                .into_iter()
                .flat_map(|name| line.split(name).skip(1))
                .filter_map(|rest| rest.split('"').next());
            let defined = definition(line).map(|(_, target)| target);
            links.extend(inline.chain(html).chain(defined).map(|target| (at + 1, target)));
        }
        links
    }

    /// The line and the name of each link `[text][name]` whose name the page does not define.
    fn undefined_references(&self) -> Vec<(usize, &str)> {
        let defined: BTreeSet<String> =
            self.prose.iter().filter_map(|line| Some(definition(line)?.0.to_lowercase())).collect();
        let lines = self.prose.iter().enumerate();
        let used = lines.flat_map(|(at, line)| {
            line.split("][").skip(1).filter_map(move |rest| Some((at + 1, rest.split_once(']')?.0)))
        });
        used.filter(|(_, name)| !defined.contains(&name.to_lowercase())).collect()
    }

    fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = Vec::new();
        let mut is_inside = false;
        for (at, line) in self.lines.iter().enumerate() {
            let Some(row) = cells(line) else {
                is_inside = false;
                continue;
            };
            if is_rule(&row) {
                continue;
            }
            if let Some(table) = tables.last_mut().filter(|_| is_inside) {
                table.rows.push((at + 1, row));
            } else {
                let next = self.lines.get(at + 1).and_then(|next| cells(next));
                is_inside = next.is_some_and(|next| is_rule(&next));
                tables.extend(is_inside.then(|| Table { columns: row, rows: Vec::new() }));
            }
        }
        tables
    }
}

impl Table {
    /// The cell of a row in the column of a name.
    fn cell<'a>(&self, cells: &'a [String], column: &str) -> Option<&'a str> {
        let at = self.columns.iter().skip(1).position(|name| name == column)?;
        cells.get(at + 1).map(String::as_str)
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names in a folder, in order.
fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The paths of the pages in a folder.
fn pages_of(folder: &str) -> Vec<String> {
    let pages = names(folder).into_iter().filter(|name| name.ends_with(".md"));
    pages.map(|name| format!("{folder}/{name}")).collect()
}

/// The paths of the chapters.
fn chapters() -> Vec<String> {
    pages_of("docs").into_iter().filter(|path| path != SUMMARY).collect()
}

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// Replaces inline code by spaces. Line breaks stay.
fn without_inline_code(lines: &[String]) -> Vec<String> {
    let text = lines.join("\n");
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(start) = rest.find('`') {
        kept += &rest[..start];
        let opened = &rest[start..];
        let code = opened.trim_start_matches('`');
        let marks = opened.len() - code.len();
        match end_of_code(code, marks) {
            Some(end) => {
                kept.extend(code[..end].chars().map(|c| if c == '\n' { c } else { ' ' }));
                rest = &code[end + marks..];
            }
            None => rest = code,
        }
    }
    kept += rest;
    kept.split('\n').map(str::to_owned).collect()
}

/// The start of the backticks that end inline code, in the same paragraph or row of a table.
fn end_of_code(text: &str, marks: usize) -> Option<usize> {
    let end = ["\n\n", "\n|"].into_iter().filter_map(|end| text.find(end)).min();
    let paragraph = &text[..end.unwrap_or(text.len())];
    let mut at = 0;
    while let Some(found) = paragraph[at..].find('`') {
        let start = at + found;
        let length = paragraph.len() - start - paragraph[start..].trim_start_matches('`').len();
        if length == marks {
            return Some(start);
        }
        at = start + length;
    }
    None
}

/// The name and the target of a line such as `[name]: page.md#heading`.
fn definition(line: &str) -> Option<(&str, &str)> {
    let (name, target) = line.trim_start().strip_prefix('[')?.split_once("]: ")?;
    Some((name, target.split_whitespace().next()?)).filter(|(name, _)| !name.starts_with('^'))
}

/// The anchor of a heading.
fn slug(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        text += before;
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text += rest;
    let characters = text.trim().to_lowercase();
    let kept = characters.chars().filter(|c| c.is_alphanumeric() || c.is_whitespace() || "_-".contains(*c));
    kept.map(|c| if c.is_whitespace() { '-' } else { c }).collect()
}

/// The cells of a row of a table.
fn cells(line: &str) -> Option<Vec<String>> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?.replace("\\|", "\u{1}");
    Some(row.split('|').map(|cell| cell.trim().replace('\u{1}', "\\|")).collect())
}

/// Whether a row of a table is the line below the headings.
fn is_rule(cells: &[String]) -> bool {
    cells.iter().all(|cell| cell.starts_with(['-', ':']) && cell.trim_matches(['-', ':']).is_empty())
}

/// The numbers in a text, as they are written. Names such as `f32` are none.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '.' && c != ',');
    let words = words.map(|word| word.trim_matches(['.', ',']));
    words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()))
}

/// The path of a link from a folder, relative to the root.
fn resolved(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Says what is wrong with a link of a page. `anchors` has those of the pages read so far.
fn fault_of_link(
    page: &str,
    target: &str,
    anchors: &mut BTreeMap<String, BTreeSet<String>>,
) -> Option<String> {
    let is_chapter = page.starts_with("docs/");
    if target.starts_with("https://") {
        return None;
    }
    if target.contains("://") || target.starts_with("mailto:") {
        return is_chapter.then(|| format!("`{target}` is neither in docs nor an https address"));
    }
    if target.is_empty() {
        return Some("the link leads nowhere".into());
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let path = if file.is_empty() { Some(page.to_owned()) } else { resolved(folder, file) };
    let Some(path) = path.filter(|path| root().join(path).exists()) else {
        return Some(format!("`{target}`: {file} does not exist"));
    };
    if is_chapter && !path.starts_with("docs/") {
        return Some(format!("`{target}` leads out of docs, and the built book has no such file"));
    }
    if anchor.is_empty() || !path.ends_with(".md") {
        return None;
    }
    let anchors = anchors.entry(path).or_insert_with_key(|path| Page::read(path).anchors());
    (!anchors.contains(anchor)).then(|| format!("`{target}`: no heading has the anchor #{anchor}"))
}

/// The text of a paragraph without marks of Markdown and the last period.
fn sentence(lines: &[&str]) -> String {
    lines.join(" ").replace(['*', '`'], "").trim().trim_end_matches('.').to_owned()
}

fn has_unsafe_code(source: &str) -> bool {
    let code = without_tests(&without_comments(source));
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
}

#[test]
fn the_summary_lists_each_chapter_once_with_its_title() {
    let summary = Page::read(SUMMARY);
    let mut faults = Vec::new();
    let mut listed = BTreeSet::new();
    for (at, line) in summary.lines.iter().enumerate() {
        let Some(entry) = line.trim_start().strip_prefix("- ") else { continue };
        let parts = entry.strip_prefix('[').and_then(|entry| entry.split_once("]("));
        let Some((title, file)) = parts.and_then(|(title, rest)| Some((title, rest.strip_suffix(')')?)))
        else {
            faults.push(summary.fault(at + 1, "expected `- [Title](file.md)`"));
            continue;
        };
        let path = format!("docs/{file}");
        if !root().join(&path).exists() {
            faults.push(summary.fault(at + 1, &format!("{file} does not exist")));
            continue;
        }
        let page = Page::read(&path);
        let heading = page.headings().next().unwrap_or("");
        if heading != title {
            faults.push(page.fault(1, &format!("the title is `{heading}`, but `{title}` in SUMMARY.md")));
        }
        if !listed.insert(path) {
            faults.push(summary.fault(at + 1, &format!("{file} is listed twice")));
        }
    }
    let missing = chapters().into_iter().filter(|path| !listed.contains(path));
    faults.extend(missing.map(|path| format!("{path}:1: SUMMARY.md does not list this page")));
    if listed.len() > MOST_CHAPTERS {
        faults.push(summary.fault(1, &format!("{} chapters instead of {MOST_CHAPTERS}", listed.len())));
    }
    assert_none(&faults);
}

#[test]
fn links_lead_to_files_and_headings() {
    let single = ["README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG", "data/README"];
    let mut paths: Vec<String> = single.iter().map(|name| format!("{name}.md")).collect();
    paths.push("python/README.md".into());
    paths.extend([pages_of("docs"), pages_of("contributing")].concat());
    for folder in ["examples", "crates"] {
        let readmes = names(folder).into_iter().map(|name| format!("{folder}/{name}/README.md"));
        paths.extend(readmes.filter(|path| root().join(path).exists()));
    }
    let (mut faults, mut anchors) = (Vec::<String>::new(), BTreeMap::new());
    let mut links = 0;
    for page in paths.iter().map(|path| Page::read(path)) {
        for (line, target) in page.links() {
            links += 1;
            let fault = fault_of_link(&page.path, target, &mut anchors);
            faults.extend(fault.map(|message| page.fault(line, &message)));
        }
        for (line, name) in page.undefined_references() {
            faults.push(page.fault(line, &format!("the page does not define the link [{name}]")));
        }
    }
    assert_none(&faults);
    assert!(links > 100, "{links} links");
}

#[test]
fn every_program_of_the_book_is_a_doctest() {
    let book = read("src/book.rs");
    let mut faults = Vec::new();
    for page in chapters().iter().map(|path| Page::read(path)) {
        let program = page.blocks.iter().find(|(_, language)| language.split(',').next() == Some("rust"));
        let included = format!("include_str!(\"../{}\")", page.path);
        if let Some((line, _)) = program.filter(|_| !book.contains(&included)) {
            faults.push(page.fault(*line, "src/book.rs does not include this page"));
        }
    }
    assert_none(&faults);
}

#[test]
fn one_sentence_says_what_highwater_is() {
    let readme = read("README.md");
    let paragraph =
        readme.lines().skip(1).skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty());
    let expected = sentence(&paragraph.collect::<Vec<_>>());
    assert!(!expected.is_empty(), "README.md: no paragraph after the title");

    let library = read("src/lib.rs");
    let lines =
        library.lines().map_while(|line| line.strip_prefix("//!")).take_while(|line| !line.is_empty());
    assert_eq!(sentence(&lines.map(str::trim).collect::<Vec<_>>()), expected, "src/lib.rs:1 and README.md:3");

    let manifest = read("Cargo.toml");
    let (before, package) = manifest.split_once("\n[package]\n").unwrap();
    let (at, description) = package
        .lines()
        .enumerate()
        .find_map(|(at, line)| Some((at, line.strip_prefix("description = ")?)))
        .unwrap();
    let line = before.matches('\n').count() + at + 3;
    assert_eq!(sentence(&[description.trim_matches('"')]), expected, "Cargo.toml:{line} and README.md:3");
}

#[test]
fn figures_of_readme_stand_in_the_benchmarks() {
    let (readme, benchmarks) = (Page::read("README.md"), Page::read(BENCHMARKS));
    let start = readme.lines.iter().position(|line| line == "## Speed").expect("README.md: no section Speed");
    let rest = &readme.lines[start + 1..];
    let end = start + 1 + rest.iter().position(|line| line.starts_with("## ")).unwrap_or(rest.len());
    let mut faults = Vec::new();

    let known: BTreeSet<&str> = benchmarks.lines.iter().flat_map(|line| numbers(line)).collect();
    for (at, line) in readme.prose[..end].iter().enumerate().skip(start + 1) {
        for number in numbers(line).filter(|number| !known.contains(number)) {
            faults.push(readme.fault(at + 1, &format!("{number} does not stand in {BENCHMARKS}")));
        }
    }

    let measured = benchmarks.tables();
    let mut compared = 0;
    for table in readme.tables() {
        for (line, cells) in table.rows.iter().filter(|(line, _)| (start + 1..=end).contains(line)) {
            compared += 1;
            if let Some(message) = fault_of_figures(&table, cells, &measured) {
                faults.push(readme.fault(*line, &message));
            }
        }
    }
    assert_none(&faults);
    assert!(compared > 0, "README.md:{}: no table", start + 1);
}

/// Says why no measured table has the row with the same label and the same figures.
fn fault_of_figures(table: &Table, cells: &[String], measured: &[Table]) -> Option<String> {
    let label = cells.first()?;
    let columns = &table.columns[1..];
    let mut message = format!("{BENCHMARKS} has no row `{label}` with the columns {}", columns.join(", "));
    for other in measured {
        for (line, row) in other.rows.iter().filter(|(_, row)| row.first() == Some(label)) {
            let figures = columns
                .iter()
                .map(|column| Some((column, table.cell(cells, column)?, other.cell(row, column)?)));
            let Some(figures) = figures.collect::<Option<Vec<_>>>() else { continue };
            let Some((column, shown, figure)) =
                figures.into_iter().find(|(_, shown, figure)| shown != figure)
            else {
                return None;
            };
            message = format!("{label}, {column}: {shown} here, {figure} in {BENCHMARKS}:{line}");
        }
    }
    Some(message)
}

/// `HIGHWATER_UPDATE_GOLDEN=1` writes the list.
#[test]
fn the_list_of_files_with_unsafe_code_is_complete() {
    let path = "contributing/unsafe.md";
    let mut list = String::from(UNSAFE_HEAD);
    for name in names("crates") {
        let folder = root().join("crates").join(&name).join("src");
        let files =
            sources(&folder).into_iter().filter(|file| has_unsafe_code(&fs::read_to_string(file).unwrap()));
        let files: Vec<String> = files
            .map(|file| format!("- `{}`\n", file.strip_prefix(&folder).unwrap().display()).replace('\\', "/"))
            .collect();
        if !files.is_empty() {
            list += &format!("\n## crates/{name}/src\n\n{}", files.concat());
        }
    }
    if std::env::var_os("HIGHWATER_UPDATE_GOLDEN").is_some() {
        fs::write(root().join(path), &list).unwrap();
    }
    let committed = read(path);
    let differences = list.lines().filter(|line| !committed.lines().any(|other| other == *line));
    let differences = differences.map(|line| format!("{path}:1: lacks {line}")).collect::<Vec<_>>();
    assert_none(&differences);
    assert!(committed == list, "{path}:1: has more than the sources; HIGHWATER_UPDATE_GOLDEN=1 writes it");
}

#[test]
fn links_in_code_are_none() {
    let text = "\
# A `b_c`: [d](d.md)
`[x](y)` [z](w.md#a-b) and ``a ` [x](y)``, ![i](p.png \"title\")
```text
[x](y)
```
[n]: m.md
[t][n] [t][o]

## A `b_c`: d
| a | b |
|---|---|
| 1 | `[x](y)` \\| 2.5, f32 |
";
    let page = Page::new("docs/page.md", text);
    assert_eq!(page.links(), [(1, "d.md"), (2, "w.md#a-b"), (2, "p.png"), (6, "m.md")]);
    assert_eq!(page.undefined_references(), [(7, "o")]);
    assert_eq!(page.blocks, [(3, "text".to_owned())]);
    assert_eq!(page.anchors().into_iter().collect::<Vec<_>>(), ["a-b_c-d", "a-b_c-d-1"]);
    let tables = page.tables();
    assert_eq!((tables.len(), tables[0].rows[0].0), (1, 12));
    assert_eq!(tables[0].cell(&tables[0].rows[0].1, "b"), Some("`[x](y)` \\| 2.5, f32"));
    assert_eq!(numbers("1,204 of 2.5, f32 in 32×32.").collect::<Vec<_>>(), ["1,204", "2.5", "32", "32"]);
    assert_eq!(resolved("docs", "../a/b.md").as_deref(), Some("a/b.md"));
    assert_eq!(resolved("", "../a"), None);
}

#[test]
fn unsafe_in_comments_texts_and_tests_is_no_unsafe_code() {
    let safe = "// unsafe\n#![forbid(unsafe_code)]\nconst A: &str = r#\"\"unsafe\"#;\n#[cfg(test)]\nmod tests { unsafe fn f() {} }\n";
    assert!(!has_unsafe_code(safe));
    assert!(has_unsafe_code(&format!("{safe}unsafe impl Send for A {{}}\n")));
}
