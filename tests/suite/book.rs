//! The book in `docs/` and the other pages: order, links, tables, programs, figures, and the list of files with unsafe code.
//!
//! Each test collects all faults, as `file:line: message`. `scripts/check-programs` builds the programs of the pages.

use std::collections::BTreeSet;
use std::fs;
use std::mem::take;
use std::path::Path;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use pulldown_cmark::{
    BrokenLink, CodeBlockKind, Event, HeadingLevel, LinkType, Options, Parser, Tag, TagEnd,
};

use crate::sources::sources;

const SUMMARY: &str = "docs/SUMMARY.md";
const BENCHMARKS: &str = "docs/benchmarks.md";
const MOST_CHAPTERS: usize = 22;
const UNSAFE: &str = "contributing/unsafe.md";

/// The line and the cells of each row. The first row has the names of the columns.
type Table = Vec<(usize, Vec<String>)>;

/// A page of the repository. Each entry has its line, which counts from 1, and its text without Markdown marks.
#[derive(Default)]
struct Page {
    /// Relative to the root of the repository.
    path: String,
    headings: Vec<(usize, HeadingLevel, String)>,
    paragraphs: Vec<(usize, String)>,
    tables: Vec<Table>,
    /// The pieces of text outside of code.
    prose: Vec<(usize, String)>,
    /// The languages of code blocks, such as `rust,no_run`.
    languages: Vec<(usize, String)>,
    /// The targets of links, images and link definitions.
    links: Vec<(usize, String)>,
    /// Links without a definition, and delimiter rows without a table.
    faults: Vec<String>,
}

impl Page {
    fn read(path: &str) -> Self {
        Self::new(path, &read(path))
    }

    fn new(path: &str, source: &str) -> Self {
        let mut page = Self { path: path.to_owned(), ..Self::default() };
        let breaks: Vec<usize> = source.match_indices('\n').map(|(at, _)| at).collect();
        let line_of = |at: usize| breaks.partition_point(|end| *end < at) + 1;
        let mut undefined = Vec::new();
        let on_undefined = |link: BrokenLink<'_>| {
            // `[text]` alone is no link.
            if link.link_type != LinkType::Shortcut {
                undefined.push((line_of(link.span.start), link.reference.to_string()));
            }
            None
        };
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH;
        let parser = Parser::new_with_broken_link_callback(source, options, Some(on_undefined));
        for (_, definition) in parser.reference_definitions().iter() {
            page.links.push((line_of(definition.span.start), definition.dest.to_string()));
        }
        // `text` collects the text of the present paragraph, heading or cell.
        let (mut text, mut is_code) = (String::new(), false);
        for (event, range) in parser.into_offset_iter() {
            let line = line_of(range.start);
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    is_code = true;
                    if let CodeBlockKind::Fenced(language) = kind {
                        page.languages.push((line, language.to_string()));
                    }
                }
                Event::End(TagEnd::CodeBlock) => is_code = false,
                Event::Text(_) if is_code => {}
                Event::Text(piece) => {
                    text += &piece;
                    page.prose.push((line, piece.to_string()));
                }
                Event::Code(code) => text += &code,
                Event::SoftBreak | Event::HardBreak => text.push(' '),
                Event::Start(Tag::Paragraph | Tag::Heading { .. } | Tag::TableCell) => text.clear(),
                Event::End(TagEnd::Paragraph) => page.paragraphs.push((line, take(&mut text))),
                Event::End(TagEnd::Heading(level)) => page.headings.push((line, level, take(&mut text))),
                Event::Start(Tag::Table(_)) => page.tables.push(Table::new()),
                Event::Start(Tag::TableHead | Tag::TableRow) => {
                    page.tables.last_mut().unwrap().push((line, Vec::new()));
                }
                Event::End(TagEnd::TableCell) => {
                    page.tables.last_mut().unwrap().last_mut().unwrap().1.push(take(&mut text));
                }
                // A reference has the target of its definition.
                Event::Start(
                    Tag::Link { link_type: LinkType::Inline | LinkType::Autolink, dest_url, .. }
                    | Tag::Image { link_type: LinkType::Inline, dest_url, .. },
                ) => page.links.push((line, dest_url.to_string())),
                Event::Html(html) | Event::InlineHtml(html) => {
                    let rests = ["src=\"", "href=\""].into_iter().flat_map(|name| html.split(name).skip(1));
                    page.links.extend(rests.map(|rest| (line, rest.split('"').next().unwrap().to_owned())));
                }
                _ => {}
            }
        }
        for (line, name) in undefined {
            page.faults.push(page.fault(line, &format!("the page does not define the link [{name}]")));
        }
        let is_delimiter = |text: &str| {
            text.contains('|') && text.contains('-') && text.trim_matches(['|', '-', ':', ' ']).is_empty()
        };
        for (line, _) in page.prose.iter().filter(|(_, text)| is_delimiter(text)) {
            page.faults.push(page.fault(*line, "no table: the row above has another number of cells"));
        }
        page.links.sort_by_key(|(line, _)| *line);
        page
    }

    /// Describes a fault at a line.
    fn fault(&self, line: usize, message: &str) -> String {
        format!("{}:{line}: {message}", self.path)
    }

    /// The anchors of the headings, as GitHub and mdBook name them.
    fn anchors(&self) -> BTreeSet<String> {
        let mut anchors = BTreeSet::new();
        for (_, _, heading) in &self.headings {
            let slug = slug(heading);
            let numbered = (1..).map(|number| format!("{slug}-{number}"));
            let anchor = std::iter::once(slug.clone()).chain(numbered).find(|name| !anchors.contains(name));
            anchors.extend(anchor);
        }
        anchors
    }

    fn first_sentence(&self) -> &str {
        self.paragraphs.first().map_or("", |(_, text)| text.trim_end_matches('.'))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The paths in a folder, in order, relative to the root of the repository.
fn paths(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<String> =
        entries.map(|path| path.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/")).collect();
    paths.sort();
    paths
}

/// The pages in a folder.
fn pages(folder: &str) -> impl Iterator<Item = Page> {
    paths(folder).into_iter().filter(|path| path.ends_with(".md")).map(|path| Page::read(&path))
}

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// The anchor of a heading.
fn slug(heading: &str) -> String {
    let characters = heading.trim().to_lowercase();
    let kept = characters.chars().filter(|c| c.is_alphanumeric() || c.is_whitespace() || "_-".contains(*c));
    kept.map(|c| if c.is_whitespace() { '-' } else { c }).collect()
}

/// Returns the numbers of a text, with their separators. Names such as `f32` are none.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '.' && c != ',');
    let words = words.map(|word| word.trim_matches(['.', ',']));
    words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()))
}

/// Says what is wrong with a link of a page.
fn fault_of_link(page: &str, target: &str) -> Option<String> {
    let is_chapter = page.starts_with("docs/");
    let is_other_address = target.contains("://") || target.starts_with("mailto:");
    if target.starts_with("https://") || is_other_address && !is_chapter {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { root().join(page) } else { root().join(page).parent()?.join(file) };
    let Some(path) = path.canonicalize().ok().filter(|_| !target.is_empty()) else {
        return Some(format!("`{target}` is neither a file of the repository nor an https address"));
    };
    let folder = if is_chapter { "docs" } else { "." };
    if !path.starts_with(root().join(folder).canonicalize().unwrap()) {
        return Some(format!("`{target}` leads out of `{folder}`, where readers have no such file"));
    }
    let has_anchors = !anchor.is_empty() && path.extension().is_some_and(|extension| extension == "md");
    let is_missing = has_anchors && !Page::read(path.to_str()?).anchors().contains(anchor);
    is_missing.then(|| format!("`{target}`: no heading has the anchor #{anchor}"))
}

/// Says why no measured table has a row with the same label and the same figures.
fn fault_of_figures(columns: &[String], cells: &[String], measured: &[Table]) -> Option<String> {
    let (label, columns) = (&cells[0], &columns[1..]);
    let mut message = format!("{BENCHMARKS} has no row `{label}` with the columns {}", columns.join(", "));
    for table in measured {
        let place = |name| Some(table[0].1[1..].iter().position(|other| other == name)? + 1);
        let Some(places) = columns.iter().map(place).collect::<Option<Vec<_>>>() else { continue };
        for (line, row) in table[1..].iter().filter(|(_, row)| row[0] == *label) {
            let mut figures = columns.iter().zip(&cells[1..]).zip(places.iter().map(|place| &row[*place]));
            let ((column, shown), figure) = figures.find(|((_, shown), figure)| shown != figure)?;
            message = format!("{label}, {column}: {shown} here, {figure} in {BENCHMARKS}:{line}");
        }
    }
    Some(message)
}

/// Whether a program has the word `unsafe` outside of items for tests.
fn has_unsafe_code(program: TokenStream) -> bool {
    let is_for_tests = |attribute: &Group| {
        let text = attribute.to_string().replace(' ', "");
        text.starts_with("[cfg(test)") || text.starts_with("[cfg(all(test,")
    };
    let mut tokens = program.into_iter();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(name) if name == "unsafe" => return true,
            TokenTree::Group(group) if is_for_tests(&group) => {
                // Skips the item, such as `mod name { … }`, `fn name() { … }` or `use name;`.
                tokens.find(|token| match token {
                    TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                    TokenTree::Punct(mark) => mark.as_char() == ';',
                    _ => false,
                });
            }
            TokenTree::Group(group) if has_unsafe_code(group.stream()) => return true,
            _ => {}
        }
    }
    false
}

#[test]
fn the_summary_lists_each_chapter_once_with_its_title() {
    let summary = Page::read(SUMMARY);
    let (mut faults, mut listed) = (Vec::new(), BTreeSet::new());
    for (at, entry) in read(SUMMARY).lines().enumerate().filter(|(_, line)| line.trim().starts_with("- ")) {
        let link = summary.links.iter().find(|(line, _)| *line == at + 1);
        let path = link.map(|(_, file)| format!("docs/{file}")).filter(|path| root().join(path).is_file());
        let Some(path) = path else {
            faults.push(summary.fault(at + 1, "expected `- [Title](file.md)` with the name of a chapter"));
            continue;
        };
        let page = Page::read(&path);
        let title = page.headings.first().map_or("", |(_, _, text)| text);
        let expected = format!("- [{title}]({})", &path["docs/".len()..]);
        if entry.trim().replace('`', "") != expected {
            faults.push(summary.fault(at + 1, &format!("expected `{expected}`, the title of {path}")));
        }
        if !listed.insert(path) {
            faults.push(summary.fault(at + 1, "this chapter is listed twice"));
        }
    }
    let missing = paths("docs").into_iter().filter(|path| path.ends_with(".md") && path != SUMMARY);
    let missing = missing.filter(|path| !listed.contains(path));
    faults.extend(missing.map(|path| format!("{path}:1: SUMMARY.md does not list this page")));
    if listed.len() > MOST_CHAPTERS {
        faults.push(summary.fault(1, &format!("{} chapters instead of {MOST_CHAPTERS}", listed.len())));
    }
    assert_none(&faults);
}

#[test]
fn links_lead_to_files_and_headings_and_tables_are_complete() {
    let mut folders = ["", "contributing", "data", "docs", "python"].map(str::to_owned).to_vec();
    folders.extend([paths("crates"), paths("examples")].concat());
    let (mut faults, mut links) = (Vec::new(), 0);
    for page in folders.iter().filter(|path| root().join(path).is_dir()).flat_map(|folder| pages(folder)) {
        links += page.links.len();
        for (line, target) in &page.links {
            let fault = fault_of_link(&page.path, target);
            faults.extend(fault.map(|message| page.fault(*line, &message)));
        }
        faults.extend(page.faults);
    }
    assert_none(&faults);
    assert!(links > 100, "{links} links");
}

#[test]
fn every_program_of_the_book_is_a_doctest() {
    let book = read("src/book.rs");
    let mut faults = Vec::new();
    for page in pages("docs") {
        let program = page.languages.iter().find(|(_, language)| language.split(',').next() == Some("rust"));
        let included = format!("include_str!(\"../{}\")", page.path);
        if let Some((line, _)) = program.filter(|_| !book.contains(&included)) {
            faults.push(page.fault(*line, "src/book.rs does not include this page"));
        }
    }
    assert_none(&faults);
}

#[test]
fn one_sentence_says_what_highwater_is() {
    let (readme, library, manifest) = (Page::read("README.md"), read("src/lib.rs"), read("Cargo.toml"));
    let expected = readme.first_sentence();
    assert!(!expected.is_empty(), "README.md: no paragraph after the title");
    let line = readme.paragraphs[0].0;
    let docs: Vec<&str> = library.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let library = Page::new("src/lib.rs", &docs.join("\n"));
    assert_eq!(library.first_sentence(), expected, "src/lib.rs:1 and README.md:{line}");
    let at = manifest.lines().position(|line| line.starts_with("description = ")).unwrap() + 1;
    assert_eq!(env!("CARGO_PKG_DESCRIPTION"), expected, "Cargo.toml:{at} and README.md:{line}");
}

#[test]
fn figures_of_readme_stand_in_the_benchmarks() {
    let (readme, benchmarks) = (Page::read("README.md"), Page::read(BENCHMARKS));
    let mut headings = readme.headings.iter().filter(|(_, level, _)| *level == HeadingLevel::H2);
    let speed = headings.find(|(_, _, text)| text == "Speed").expect("README.md: no section Speed");
    let section = speed.0..headings.next().map_or(usize::MAX, |(line, _, _)| *line);
    let (mut faults, mut compared) = (Vec::new(), 0);

    let known: BTreeSet<&str> = benchmarks.prose.iter().flat_map(|(_, text)| numbers(text)).collect();
    for (line, text) in readme.prose.iter().filter(|(line, _)| section.contains(line)) {
        for number in numbers(text).filter(|number| !known.contains(number)) {
            faults.push(readme.fault(*line, &format!("{number} does not stand in {BENCHMARKS}")));
        }
    }
    for table in readme.tables.iter().filter(|table| section.contains(&table[0].0)) {
        for (line, cells) in &table[1..] {
            compared += 1;
            let message = fault_of_figures(&table[0].1, cells, &benchmarks.tables);
            faults.extend(message.map(|message| readme.fault(*line, &message)));
        }
    }
    assert_none(&faults);
    assert!(compared > 0, "README.md:{}: no table", section.start);
}

/// `HIGHWATER_UPDATE_GOLDEN=1` writes the list.
#[test]
fn the_list_of_files_with_unsafe_code_is_complete() {
    let committed = read(UNSAFE);
    let mut list = committed.split("\n## ").next().unwrap().to_owned();
    for folder in paths("crates").iter().map(|name| format!("{name}/src")) {
        let mut head = format!("\n## {folder}\n\n");
        for file in sources(&root().join(&folder)) {
            let shown =
                file.strip_prefix(root().join(&folder)).unwrap().display().to_string().replace('\\', "/");
            let program = fs::read_to_string(&file).unwrap().parse();
            if has_unsafe_code(program.unwrap_or_else(|error| panic!("{folder}/{shown}: {error}"))) {
                list += &format!("{}- `{shown}`\n", take(&mut head));
            }
        }
    }
    if std::env::var_os("HIGHWATER_UPDATE_GOLDEN").is_some() {
        return fs::write(root().join(UNSAFE), &list).unwrap();
    }
    let line = 1 + list.lines().zip(committed.lines()).take_while(|(listed, other)| listed == other).count();
    let expected = list.lines().nth(line - 1).unwrap_or("the end");
    assert!(
        committed == list,
        "{UNSAFE}:{line}: expected `{expected}`; HIGHWATER_UPDATE_GOLDEN=1 writes the list"
    );
}

#[test]
fn links_and_tables_in_code_are_none() {
    let text = "\
# A `b_c`: [d](d.md)
`[x](y)` and ``a ` [x](y)``, ![i](p.png \"title\")
```text
[x](y)
|---|
```
[n]: m.md
[t][n] [t][o] [u]

## A `b_c`: d
| a | b |
|---|---|
| 1 | `[x](y)` \\| 2.5, f32 |

- | a | b |
  |:-:|
";
    let page = Page::new("docs/page.md", text);
    assert_eq!(page.links, [(1, "d.md"), (2, "p.png"), (7, "m.md")].map(|(line, to)| (line, to.to_owned())));
    assert_eq!(page.faults.len(), 2, "{:?}", page.faults);
    assert_eq!(page.faults[0], "docs/page.md:8: the page does not define the link [o]");
    assert!(page.faults[1].starts_with("docs/page.md:16: no table"), "{:?}", page.faults);
    assert_eq!(page.anchors().into_iter().collect::<Vec<_>>(), ["a-b_c-d", "a-b_c-d-1"]);
    assert_eq!(page.tables[0][1], (13, vec!["1".to_owned(), "[x](y) | 2.5, f32".to_owned()]));
    assert_eq!(numbers("1,204 of 2.5, f32 in 32×32.").collect::<Vec<_>>(), ["1,204", "2.5", "32", "32"]);
}

#[test]
fn unsafe_in_comments_texts_and_tests_is_no_unsafe_code() {
    let safe = "// unsafe\n#![forbid(unsafe_code)]\nconst A: &str = r#\"\"unsafe\"#;\n#[cfg(test)]\nmod tests { unsafe fn f() {} }\n";
    assert!(!has_unsafe_code(safe.parse().unwrap()));
    assert!(has_unsafe_code(format!("{safe}unsafe impl Send for A {{}}\n").parse().unwrap()));
    assert!(has_unsafe_code("fn f() { g(unsafe { h() }) }".parse().unwrap()));
}
