//! The structure of the source, checked: layers, `unsafe`, size, words, links, dependencies, and numbers that only go down
//! ([`ratchets`]). What is allowed stands in `layers.toml` and `ratchet.toml`. Part of `make lint`; needs no root and builds nothing.
#![forbid(unsafe_code)]

mod calls;
mod driver;
mod graph;
mod help;
mod imports;
mod ratchets;
mod shapes;
mod tree;

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use toe_tests::bins::workspace;
use toe_tests::source::{self, Source};

/// Lines of a file without its tests.
const FILE_LINES_MAX: usize = 600;
/// Lines of a function.
const FUNCTION_LINES_MAX: usize = 70;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    order: Vec<String>,
    /// No part of what runs beside a user's programs: `ratchet.toml` says nothing of them.
    tools: BTreeSet<String>,
    /// Folders whose circles `ratchet.toml` has beside those of their crates.
    folders: Vec<String>,
    #[serde(rename = "unsafe")]
    may_be_unsafe: BTreeSet<String>,
    forbidden: BTreeMap<String, Vec<String>>,
    engine: EngineRules,
    ratchet: Ratchet,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EngineRules {
    path: String,
    stages: Vec<String>,
    joins: Vec<String>,
    shared: Vec<String>,
    edges: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ratchet {
    files: BTreeMap<String, String>,
    functions: BTreeMap<String, String>,
}

/// One package of `cargo metadata`.
#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    path: Option<String>,
    /// `dev`, `build`, or nothing for an ordinary one.
    kind: Option<String>,
}

fn rules() -> Rules {
    let text = fs::read_to_string(workspace().join("layers.toml")).expect("layers.toml");
    toml::from_str(&text).expect("layers.toml is as this test expects it")
}

fn packages() -> Vec<Package> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    let mut cargo = Command::new(env!("CARGO"));
    let cargo = cargo.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(workspace());
    let output = cargo.output().expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<Metadata>(&output.stdout).expect("cargo metadata is JSON").packages
}

/// Fails with all findings at once, one a line.
fn expect_none(what: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{what}:\n  {}\n", findings.join("\n  "));
}

#[test]
fn crates_use_only_crates_before_them() {
    let rules = rules();
    let place = |name: &str| rules.order.iter().position(|other| other == name);
    let mut findings = Vec::new();
    for package in packages() {
        let Some(own) = place(&package.name) else {
            findings.push(format!("{} has no place in layers.toml", package.name));
            continue;
        };
        // A test may look at the crate from above; what is shipped may not.
        let uses =
            package.dependencies.iter().filter(|d| d.path.is_some() && d.kind.as_deref() != Some("dev"));
        for dependency in uses {
            let forbidden =
                rules.forbidden.get(&package.name).is_some_and(|list| list.contains(&dependency.name));
            if forbidden || place(&dependency.name).is_none_or(|other| other >= own) {
                findings.push(format!("{} must not use {}", package.name, dependency.name));
            }
        }
    }
    expect_none("the order of the crates (layers.toml)", &findings);
}

#[test]
fn unsafe_is_where_it_may_be() {
    let rules = rules();
    let mut findings = Vec::new();
    for source in source::all(workspace()) {
        if rules.may_be_unsafe.contains(&format!("toe-{}", source.krate)) {
            continue;
        }
        let is_word = |text: &str, at: usize| {
            let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            !word(text[..at].chars().next_back()) && !word(text[at + "unsafe".len()..].chars().next())
        };
        for (at, _) in source.code.match_indices("unsafe").filter(|(at, _)| is_word(&source.code, *at)) {
            findings.push(format!("{}:{}: unsafe", source.path, source.code[..at].matches('\n').count() + 1));
        }
        // Each file that starts a crate of its own: libraries, programs, integration tests.
        let starts = ["src/lib.rs", "src/main.rs"].iter().any(|end| source.path.ends_with(end));
        if starts && !source.code.contains("#![forbid(unsafe_code)]") {
            findings.push(format!("{}: no #![forbid(unsafe_code)]", source.path));
        }
    }
    expect_none("unsafe outside the crates that may have it (layers.toml)", &findings);
}

#[test]
fn every_module_says_what_it_is() {
    let says = |source: &Source| source.text.lines().next().is_some_and(|line| line.starts_with("//! "));
    let findings: Vec<_> =
        source::all(workspace()).iter().filter(|s| !says(s)).map(|s| s.path.clone()).collect();
    expect_none("modules that do not start with `//!`", &findings);
}

#[test]
fn files_and_functions_are_short() {
    let ratchet = rules().ratchet;
    let (mut findings, mut met) = (Vec::new(), BTreeSet::new());
    for source in source::all(workspace()) {
        let code = source.code_without_tests();
        let lines = code.lines().count();
        if ratchet.files.contains_key(&source.path) {
            met.insert(source.path.clone());
        } else if lines > FILE_LINES_MAX {
            findings.push(format!("{}: {lines} lines (most {FILE_LINES_MAX})", source.path));
        }
        for function in source::functions(code).into_iter().filter(|f| f.lines > FUNCTION_LINES_MAX) {
            let key = format!("{}::{}", source.path, function.name);
            if ratchet.functions.contains_key(&key) {
                met.insert(key);
                continue;
            }
            let (path, line, name, lines) = (&source.path, function.line, &function.name, function.lines);
            findings.push(format!("{path}:{line}: {name} has {lines} lines (most {FUNCTION_LINES_MAX})"));
        }
    }
    // An entry whose file or function is gone, or is short by now, has done its work.
    let entries = ratchet.files.iter().chain(&ratchet.functions);
    findings.extend(
        entries
            .clone()
            .filter(|(key, _)| !met.contains(*key))
            .map(|(key, _)| format!("layers.toml: {key} needs no exception any more")),
    );
    findings.extend(
        entries
            .filter(|(_, why)| why.trim().is_empty())
            .map(|(key, _)| format!("layers.toml: {key} has an exception without a reason")),
    );
    expect_none("too long", &findings);
}

#[test]
fn nothing_is_left_unfinished() {
    // In pieces, so that this list does not find itself.
    let everywhere = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
    let in_code = [
        concat!("dbg", "!("),
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("#[ig", "nore"),
    ];
    let mut findings = Vec::new();
    for source in source::all(workspace()) {
        for (number, (text, code)) in source.text.lines().zip(source.code.lines()).enumerate() {
            let words = everywhere.iter().filter(|word| text.contains(*word));
            for word in words.chain(in_code.iter().filter(|word| code.contains(*word))) {
                findings.push(format!("{}:{}: {word}", source.path, number + 1));
            }
        }
    }
    expect_none("left unfinished or switched off", &findings);
}

#[test]
fn the_engines_stages_do_not_know_each_other() {
    let rules = rules().engine;
    let mut findings = Vec::new();
    for source in source::all(workspace()) {
        let Some(module) = source.module_below(&rules.path) else { continue };
        let own = module.split('/').next().unwrap_or_default().to_owned();
        if source.is_test() || rules.joins.contains(&own) || own == "tests" {
            continue;
        }
        for path in crate_paths(source.code_without_tests()) {
            let used = path.split("::").next().unwrap_or_default().to_owned();
            let is_edge = |edge: &String| path == *edge || path.starts_with(&format!("{edge}::"));
            let allowed = used == own
                || rules.shared.contains(&used)
                || !rules.stages.contains(&used)
                || rules.edges.get(&own).is_some_and(|edges| edges.iter().any(is_edge));
            if !allowed {
                findings.push(format!("{}: {own} uses crate::{path}", source.path));
            }
        }
    }
    expect_none("stages of the engine (layers.toml)", &findings);
}

/// Every `crate::` path in `code`, without the `crate::`; one in braces gives one path for each part.
fn crate_paths(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, matched) in code.match_indices("crate::") {
        let rest = &code[at + matched.len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(group_parts(group).into_iter().map(path_at)),
            None => {
                found.insert(path_at(rest));
            }
        }
    }
    found
}

/// The parts of `a::b, c::{d, e}, f}`, up to the brace that closes it.
fn group_parts(group: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                parts.extend(Some(group[start..at].trim()).filter(|part| !part.is_empty()));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    parts
}

/// The path that `text` starts with: `flow::key::FlowKey`.
fn path_at(text: &str) -> String {
    let path: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_' || *c == ':').collect();
    path.trim_end_matches(':').to_owned()
}

#[test]
fn grouped_paths_are_seen() {
    let found = crate_paths("use crate::flow::key;\nuse crate::{work::{A, B}, egress};\ncrate::sched::x();");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["egress", "flow::key", "sched::x", "work"]);
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut findings = Vec::new();
    for path in source::files(workspace(), "md") {
        let text = fs::read_to_string(&path).expect("a document");
        let folder = path.parent().expect("a folder");
        for named in paths_in_code(&text).filter(|named| !workspace().join(named).exists()) {
            findings.push(format!("{}: `{named}`", shown(&path)));
        }
        for target in link_targets(&text) {
            let file = target.split('#').next().unwrap_or_default();
            let outside = ["http:", "https:", "mailto:"].iter().any(|scheme| target.starts_with(scheme));
            if !outside && !file.is_empty() && !folder.join(file).exists() {
                findings.push(format!("{}: {target}", shown(&path)));
            }
        }
    }
    expect_none("links and paths that lead nowhere", &findings);
}

/// Files and folders of the tree that stand between backticks.
fn paths_in_code(text: &str) -> impl Iterator<Item = &str> {
    let ours = ["crates/", "scripts/", "docs/", "examples/", "include/"];
    let pieces = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    pieces.filter(move |piece| {
        ours.iter().any(|start| piece.starts_with(start)) && !piece.contains([' ', '*', '<'])
    })
}

fn shown(path: &Path) -> String {
    path.strip_prefix(workspace()).unwrap_or(path).display().to_string()
}

/// The targets of `[text](target)` outside code blocks.
fn link_targets(text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        }
        if in_block {
            continue;
        }
        // Code in a line is no link either.
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("_");
        targets
            .extend(plain.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned));
    }
    targets
}

/// How a page fault of the engine's could be held up is argued memory by memory.
#[test]
fn shared_memory_is_what_the_document_lists() {
    let sources = source::all(workspace());
    let in_engine = |source: &&Source| ["ring", "daemon"].contains(&source.krate.as_str());
    let makes = |source: &&Source| {
        let code = source.code_without_tests();
        ["memfd_create(", "Region::create(", "Region::create_for(", "memory_file("]
            .iter()
            .any(|call| code.contains(call))
    };
    let made: BTreeSet<String> =
        sources.iter().filter(in_engine).filter(makes).map(|source| source.path.clone()).collect();
    let document = fs::read_to_string(workspace().join("docs/security.md")).expect("a document");
    let table = document.split("| memory | made in |").nth(1).and_then(|rest| rest.split("\n\n").next());
    let rows = table.expect("a table").lines().filter_map(|row| row.split('|').nth(2));
    let listed: BTreeSet<String> = rows.flat_map(paths_in_code).map(str::to_owned).collect();
    assert_eq!(made, listed, "memory that is made, and that docs/security.md speaks of");
    let files = |source: &&Source| source.code_without_tests().contains("memfd_create(");
    let constructors = sources.iter().filter(in_engine).filter(files).count();
    assert_eq!(constructors, 3, "what hosts map, reports, spare pages");
}

#[test]
fn every_target_that_is_named_is_run_before_a_change_is_taken() {
    let read = |path: &str| fs::read_to_string(workspace().join(path)).expect("a file of the tree");
    let run: BTreeSet<String> =
        [".ci/run", "scripts/smoke.sh"].iter().flat_map(|p| make_targets(&read(p))).collect();
    let findings = ["README.md", "CONTRIBUTING.md"].iter().flat_map(|path| {
        let named = make_targets(&read(path)).into_iter();
        named.filter(|target| !run.contains(target)).map(move |target| format!("{path}: make {target}"))
    });
    expect_none("targets that scripts/smoke.sh does not run", &findings.collect::<Vec<_>>());
}

/// The targets in commands such as `make sim SEEDS=10`.
fn make_targets(text: &str) -> BTreeSet<String> {
    // In a sentence the word is a verb.
    let commands = text.split(['`', '\n', '&', '(']).map(|part| part.trim_start_matches([' ', '\t']));
    let commands = commands.map(|part| part.rsplit_once("sudo ").map_or(part, |(_, command)| command));
    let is_name = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    let target =
        |part: &str| part.split("make ").nth(1)?.split(' ').next().filter(is_name).map(str::to_owned);
    commands.filter(|part| part.starts_with("make ") || part.starts_with("run ")).filter_map(target).collect()
}

#[test]
fn every_dependency_has_its_reason() {
    let text = fs::read_to_string(workspace().join("docs/dependencies.md")).expect("docs/dependencies.md");
    let listed: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next().map(str::to_owned))
        .collect();
    let used: BTreeSet<String> = packages()
        .into_iter()
        .flat_map(|package| package.dependencies)
        .filter(|dependency| dependency.path.is_none())
        .map(|dependency| dependency.name)
        .collect();
    let mut findings: Vec<_> =
        used.difference(&listed).map(|name| format!("{name} is used, not listed")).collect();
    findings.extend(listed.difference(&used).map(|name| format!("{name} is listed, not used")));
    expect_none("docs/dependencies.md", &findings);
}
