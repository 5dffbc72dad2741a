//! The table of docs/compatibility.md: of each option what Linux does on a connection, and what the engine does.

use crate::answers::Answers;
use crate::known;
use crate::names::{LEVELS, Named, REQUESTS};
use std::fmt::Write;
use toe_tests::bins::workspace;

const BEGIN: &str = "<!-- options: begin -->\n";
const END: &str = "<!-- options: end -->";
/// The state whose answers are shown.
const STATE: &str = "established";
const IPV6: i64 = 41;

/// Values that were tried, of the longest run of which both ends are told.
const VALUES: std::ops::RangeInclusive<i64> = -2_147_483_647..=0x7fff_ffff;

/// What reading it gives where there is room for all of it.
fn reads(words: &[String], option: &Named) -> String {
    let whole = words.iter().find_map(|word| word.strip_prefix("512=")).unwrap_or("?");
    let Some((len, bytes)) = whole.split_once(':') else {
        return if whole.starts_with(|c: char| c.is_ascii_digit()) {
            bytes_of(whole)
        } else {
            whole.to_owned()
        };
    };
    match (len, u32::from_str_radix(bytes, 16)) {
        ("4", Ok(value)) if option.compared => format!("{}", value.swap_bytes() as i32),
        _ => bytes_of(len),
    }
}

fn bytes_of(len: &str) -> String {
    if len == "0" { "nothing".to_owned() } else { format!("{len} bytes") }
}

/// Which ints may be set, of those that were tried, and how the others are refused.
fn sets(words: &[String]) -> String {
    let mut tried: Vec<(i64, &str)> = words
        .iter()
        .filter_map(|word| {
            let (value, answer) = word.strip_prefix("4/")?.split_once('=')?;
            let outcome = answer.split(':').next().unwrap_or_default();
            Some((value.parse().ok()?, outcome))
        })
        .filter(|(value, _)| VALUES.contains(value))
        .collect();
    tried.sort_unstable();
    tried.dedup_by_key(|(value, _)| *value);
    let refusal = tried.iter().find(|(_, outcome)| *outcome != "ok").map(|(_, outcome)| *outcome);
    let Some(refusal) = refusal else { return "any int".to_owned() };
    let runs: Vec<String> = tried
        .chunk_by(|a, b| (a.1 == "ok") == (b.1 == "ok"))
        .filter(|run| run[0].1 == "ok")
        .map(|run| match (run[0].0, run[run.len() - 1].0) {
            (first, last) if first == last => first.to_string(),
            (first, last) if last == *VALUES.end() => format!("{first} …"),
            (first, last) => format!("{first} … {last}"),
        })
        .collect();
    if runs.is_empty() { refusal.to_owned() } else { format!("{}; others {refusal}", runs.join(", ")) }
}

fn engine(name: &str) -> String {
    known::why(name).map_or_else(|| "same".to_owned(), str::to_owned)
}

/// The table as these answers of Linux's make it.
fn table(inet: &Answers, inet6: &Answers) -> String {
    let mut text = format!("Made with {}.\n", linux());
    for (title, level, options) in LEVELS {
        let _ = write!(text, "\n#### {title}\n\n| option | read | set | engine |\n|---|---|---|---|\n");
        let answers = if level == IPV6 { inet6 } else { inet };
        for option in options {
            let words = answers.of(&level.to_string(), option.number, STATE);
            let (reads, sets) = (reads(words, option), sets(words));
            let _ = writeln!(text, "| {} | {reads} | {sets} | {} |", option.name, engine(option.name));
        }
    }
    text.push_str("\n#### Requests of ioctl\n\n| request | Linux | engine |\n|---|---|---|\n");
    for (name, number) in REQUESTS {
        let answer = inet.of("ioctl", *number, STATE).first().cloned().unwrap_or_default();
        let outcome = answer.split(':').next().unwrap_or_default();
        let _ = writeln!(text, "| {name} | {outcome} | {} |", engine(name));
    }
    text
}

/// The kernel by its version, as far as options depend on it.
fn linux() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut parts = release.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    format!("Linux {major}.{minor}")
}

/// Of each row what does not depend on the kernel.
fn of_engine(table: &str) -> Vec<(String, String)> {
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let cells =
        rows.map(|row| row.trim_matches(['|', ' ']).split(" | ").map(str::to_owned).collect::<Vec<_>>());
    cells.map(|cells| (cells[0].clone(), cells[cells.len() - 1].clone())).collect()
}

/// Checks that the document has the table, or writes it there. What Linux does is compared where it is the same Linux.
pub fn check(inet: &Answers, inet6: &Answers) {
    let path = workspace().join("docs/compatibility.md");
    let document = std::fs::read_to_string(&path).expect("docs/compatibility.md");
    let (before, rest) = document.split_once(BEGIN).expect("the table's begin");
    let (listed, after) = rest.split_once(END).expect("the table's end");
    let made = table(inet, inet6);
    if std::env::var_os("TOE_OPTIONS_WRITE").is_some() {
        std::fs::write(&path, [before, BEGIN, &made, END, after].concat()).expect("it can be written");
        return;
    }
    let hint = "TOE_OPTIONS_WRITE=1 writes the table of docs/compatibility.md anew";
    assert_eq!(of_engine(listed), of_engine(&made), "{hint}");
    if listed.lines().next() == made.lines().next() {
        assert_eq!(listed, made, "{hint}");
    }
}
