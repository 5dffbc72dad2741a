//! `docs/conformance.md`, checked: what its tables say of files, functions, scripts and tests is so, nothing that the RFCs
//! number is left out, and the sums on top are right. Part of `make lint`; builds nothing and runs no script.
//!
//! `TOE_WRITE=1 cargo test -p toe-tests --test conformance` writes the sums anew.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use toe_tests::bins::workspace;
use toe_tests::conformance::{PAGE, Page, Row, State, code_in, file_text, page, page_text};
use toe_tests::source;

const SCRIPTS: &str = "crates/script/scripts";
/// Between these lines of the page stand the sums.
const SUMS: (&str, &str) = ("<!-- sums -->", "<!-- end of sums -->");
/// RFC 9293 numbers its requirements; each has to have a row.
const NUMBERED: [(&str, u32); 2] = [("MUST-", 69), ("SHLD-", 31)];
/// Sections that comments in these folders name have to have rows.
const CITING: [&str; 3] = ["crates/tcp/src", "crates/engine/src/flow", "crates/wire/src/tcp"];

/// A script's header, as far as it matters here.
#[derive(Debug)]
struct Header {
    /// RFCs and sections that `rfc:` names; the section is empty where only the RFC is.
    names: Vec<(String, String)>,
    rfc_line: String,
    is_pending: bool,
}

impl Header {
    fn names_section(&self, rfc: &str, section: &str) -> bool {
        let mut of_rfc = self.names.iter().filter(|(named, _)| named == rfc).peekable();
        of_rfc.peek().is_some() && of_rfc.any(|(_, named)| named.is_empty() || related(named, section))
    }
}

/// One section holds the other.
fn related(a: &str, b: &str) -> bool {
    let holds = |outer: &str, inner: &str| {
        inner == outer || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'))
    };
    holds(a, b) || holds(b, a)
}

fn expect_none(what: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{what}:\n{}", findings.join("\n"));
}

/// Whether the file defines something of this name.
fn defines(text: &str, name: &str) -> bool {
    let kinds = ["fn", "const", "struct", "enum", "static", "type", "trait", "mod"];
    kinds.iter().any(|kind| has_word_after(text, &format!("{kind} "), name))
}

fn has_word_after(text: &str, before: &str, name: &str) -> bool {
    let wanted = format!("{before}{name}");
    text.match_indices(&wanted).any(|(at, _)| {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        !text[at + wanted.len()..].starts_with(is_part) && !text[..at].ends_with(is_part)
    })
}

/// Whether the file has a test of this name: `#[test]` (or a property) stands not far above it.
fn tests(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().enumerate().any(|(at, line)| {
        let is_it = has_word_after(line, "fn ", name);
        is_it && lines[at.saturating_sub(4)..at].iter().any(|above| above.trim() == "#[test]")
    })
}

fn header(text: &str) -> Header {
    let lines = text.lines().take_while(|line| !line.trim().is_empty());
    let (mut rfc_line, mut is_pending) = (String::new(), false);
    for line in lines {
        if let Some(rest) = line.strip_prefix("rfc:") {
            rfc_line = rest.trim().to_owned();
        }
        is_pending |= line.starts_with("pending:");
    }
    Header { names: cited(&format!("RFC {rfc_line}")), rfc_line, is_pending }
}

/// RFCs and sections in a text: `RFC 9293 section 3.4`, `RFC 6298 sections 5.2 and 5.3`, `RFC 5681`.
fn cited(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for rest in text.split("RFC ").skip(1) {
        let rfc: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let mut words = rest[rfc.len()..].split_whitespace();
        let mut sections = Vec::new();
        if words.next().is_some_and(|word| word == "section" || word == "sections") {
            for word in words {
                let section = word.trim_end_matches(|c: char| !c.is_ascii_digit());
                let is_number = section.starts_with(|c: char| c.is_ascii_digit());
                if is_number && section.chars().all(|c| c.is_ascii_digit() || c == '.') {
                    sections.push(section.to_owned());
                    if word.ends_with([')', ':', ';']) || word.ends_with('.') {
                        break;
                    }
                } else if !["and", "to", "or"].contains(&word) {
                    break;
                }
            }
        }
        if sections.is_empty() {
            sections.push(String::new());
        }
        found.extend(sections.into_iter().map(|section| (rfc.clone(), section)));
    }
    found
}

/// All scripts by their short name, `rfc6298/karn`.
fn scripts() -> BTreeMap<String, Header> {
    let root = workspace().join(SCRIPTS);
    let name = |path: &Path| {
        let name = path.strip_prefix(&root).expect("below the folder").with_extension("");
        name.display().to_string()
    };
    source::files(&root, "toe")
        .into_iter()
        .map(|path| (name(&path), header(&fs::read_to_string(&path).expect("a script"))))
        .collect()
}

#[test]
fn every_row_is_whole() {
    let page = page(&page_text());
    expect_none("rows that say too little", &page.findings);
    assert!(
        page.rows.len() > 250,
        "only {} rows were read: has the form of the page changed?",
        page.rows.len()
    );
    let mut seen = BTreeSet::new();
    let twice: Vec<String> = page
        .tables
        .iter()
        .filter(|rfc| !seen.insert(*rfc))
        .map(|rfc| format!("{rfc} has two tables"))
        .collect();
    expect_none("tables", &twice);
}

#[test]
fn what_implements_a_row_is_there() {
    let mut findings = Vec::new();
    for row in page(&page_text()).rows {
        for named in code_in(&row.where_) {
            let (path, item) =
                named.split_once("::").map_or((named, None), |(path, item)| (path, Some(item)));
            match (file_text(path), item) {
                (None, _) => findings.push(format!("{}: there is no file {path}", row.name())),
                (Some(text), Some(item)) if !defines(&text, item) => {
                    findings.push(format!("{}: {path} defines no `{item}`", row.name()));
                }
                _ => {}
            }
        }
    }
    expect_none("files and functions that are not there", &findings);
}

#[test]
fn what_shows_a_row_is_there() {
    let scripts = scripts();
    let mut findings = Vec::new();
    for row in page(&page_text()).rows.iter().filter(|row| row.state == State::Presented) {
        for named in code_in(&row.presented) {
            if let Some(wrong) = wrong_proof(row, named, &scripts) {
                findings.push(format!("{}: {wrong}", row.name()));
            }
        }
    }
    expect_none("proofs that are none", &findings);
}

#[test]
fn what_is_called_pending_is() {
    let scripts = scripts();
    let mut findings = Vec::new();
    for row in page(&page_text()).rows.iter().filter(|row| row.presented.contains("pending")) {
        for named in code_in(&row.presented) {
            match scripts.get(named) {
                None => findings.push(format!("{}: there is no script {named}", row.name())),
                Some(header) if !header.is_pending => {
                    findings.push(format!("{}: {named} is pending no longer: say what it shows", row.name()));
                }
                Some(_) => {}
            }
        }
    }
    expect_none("rows that time has passed by", &findings);
}

fn wrong_proof(row: &Row, named: &str, scripts: &BTreeMap<String, Header>) -> Option<String> {
    if let Some((path, test)) = named.split_once("::") {
        let Some(text) = file_text(path) else { return Some(format!("there is no file {path}")) };
        return (!tests(&text, test)).then(|| format!("{path} has no test `{test}`"));
    }
    let Some(header) = scripts.get(named) else {
        return Some(format!("there is no script {SCRIPTS}/{named}.toe"));
    };
    if header.is_pending {
        return Some(format!("{named} is pending: the engine does not do it, so it shows nothing"));
    }
    let named_by_number =
        row.number.as_ref().is_some_and(|number| words(&header.rfc_line).any(|word| word == number));
    (!named_by_number && !header.names_section(&row.rfc, &row.section)).then(|| {
        format!("{named} is of RFC {}, not of this section: correct its `rfc:` or this row", header.rfc_line)
    })
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '-')
}

#[test]
fn scripts_that_name_a_number_are_in_its_row() {
    let page = page(&page_text());
    let mut findings = Vec::new();
    for (name, header) in scripts() {
        if header.is_pending || !header.names.iter().any(|(rfc, _)| rfc == "9293") {
            continue;
        }
        for number in
            words(&header.rfc_line).filter(|word| word.starts_with("MUST-") || word.starts_with("SHLD-"))
        {
            let rows: Vec<&Row> = page
                .rows
                .iter()
                .filter(|row| row.rfc == "9293" && row.number.as_deref() == Some(number))
                .collect();
            if rows.is_empty() {
                findings.push(format!("{name} names {number}, and no row does"));
            } else if rows.iter().all(|row| matches!(row.state, State::Unshown | State::NotMet)) {
                findings
                    .push(format!("{}: {name} shows it, so say so (or its `rfc:` is wrong)", rows[0].name()));
            }
        }
    }
    expect_none("scripts and rows that do not know of each other", &findings);
}

#[test]
fn all_that_rfc_9293_numbers_has_a_row() {
    let page = page(&page_text());
    let has: BTreeSet<&str> =
        page.rows.iter().filter(|row| row.rfc == "9293").filter_map(|row| row.number.as_deref()).collect();
    let missing: Vec<String> = NUMBERED
        .iter()
        .flat_map(|(kind, last)| (1..=*last).map(move |n| format!("{kind}{n}")))
        .filter(|number| !has.contains(number.as_str()))
        .collect();
    expect_none("requirements of RFC 9293 without a row", &missing);
    let wrong: Vec<String> = page
        .rows
        .iter()
        .filter_map(|row| Some((row, row.number.as_deref()?)))
        .filter(|(row, number)| {
            number.starts_with("MUST-") && row.level != "MUST"
                || number.starts_with("SHLD-") && row.level != "SHOULD"
        })
        .map(|(row, _)| format!("{}: its level is {}", row.name(), row.level))
        .collect();
    expect_none("levels that contradict the number", &wrong);
}

#[test]
fn what_comments_cite_has_a_row() {
    let page = page(&page_text());
    let mut findings = BTreeSet::new();
    for source in source::all(workspace()).iter().filter(|s| CITING.iter().any(|dir| s.path.starts_with(dir)))
    {
        for (at, line) in source.text.lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else { continue };
            for (rfc, section) in cited(comment).into_iter().filter(|(rfc, _)| rfc.len() >= 4) {
                let mut of_rfc = page.rows.iter().filter(|row| row.rfc == rfc).peekable();
                if of_rfc.peek().is_none() {
                    findings.insert(format!("{}:{}: RFC {rfc} has no table", source.path, at + 1));
                } else if !section.is_empty() && !of_rfc.any(|row| related(&row.section, &section)) {
                    findings.insert(format!(
                        "{}:{}: RFC {rfc} section {section} has no row",
                        source.path,
                        at + 1
                    ));
                }
            }
        }
    }
    expect_none(&format!("cited, and not in {PAGE}"), &findings.into_iter().collect::<Vec<_>>());
}

#[test]
fn the_sums_are_right() {
    let text = page_text();
    let sums = sums(&page(&text));
    let (start, end) = SUMS;
    let (before, rest) = text.split_once(start).expect("the mark before the sums");
    let (old, after) = rest.split_once(end).expect("the mark after the sums");
    if old.trim() == sums.trim() {
        return;
    }
    if std::env::var_os("TOE_WRITE").is_some() {
        let new = format!("{before}{start}\n{sums}{end}{after}");
        fs::write(workspace().join(PAGE), new).expect("the page is written");
        return;
    }
    panic!("the sums in {PAGE} are old (TOE_WRITE=1 writes them); they should be\n{sums}");
}

fn sums(page: &Page) -> String {
    let mut out = String::from(
        "| | rows | shown by a script or test | met, no script yet | not met | does not apply |\n|---|---|---|---|---|---|\n",
    );
    let mut line = |name: &str, rows: &[&Row]| {
        let of = |state| rows.iter().filter(|row| row.state == state).count();
        let [presented, unshown, not_met, not_ours] =
            [State::Presented, State::Unshown, State::NotMet, State::DoesNotApply].map(of);
        let _ =
            writeln!(out, "| {name} | {} | {presented} | {unshown} | {not_met} | {not_ours} |", rows.len());
    };
    for rfc in &page.tables {
        let rows: Vec<&Row> = page.rows.iter().filter(|row| row.rfc == *rfc).collect();
        let name =
            if rfc.starts_with(|c: char| c.is_ascii_digit()) { format!("RFC {rfc}") } else { rfc.clone() };
        line(&name, &rows);
    }
    for level in ["MUST", "SHOULD"] {
        let rows: Vec<&Row> = page.rows.iter().filter(|row| row.level == level).collect();
        line(&format!("**all {level}**"), &rows);
    }
    line("**all**", &page.rows.iter().collect::<Vec<_>>());
    out
}

#[test]
fn citations_are_read() {
    let pair = |rfc: &str, section: &str| (rfc.to_owned(), section.to_owned());
    assert_eq!(
        cited("(RFC 9293 sections 3.7 and 3.8.6.1), RFC 5681 section 2, \"x\"; RFC 3465"),
        [pair("9293", "3.7"), pair("9293", "3.8.6.1"), pair("5681", "2"), pair("3465", "")]
    );
    assert!(
        related("3.8", "3.8.6")
            && related("3.8.6", "3.8")
            && !related("3.8", "3.80")
            && !related("3.1", "3.10")
    );
}
