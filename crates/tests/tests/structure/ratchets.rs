//! Numbers that only go down: `ratchet.toml` has them, and this test compares them with the source. A number that has risen fails, and
//! so does one that has fallen, until it is recorded: then it stays down. `scripts/ratchets.sh` shows what each is made of.

use crate::shapes::{self, Name, Shape};
use crate::tree::Krate;
use crate::{Rules, calls, imports, rules};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use toe_tests::bins::workspace;
use toe_tests::source::{self, Source};

/// What is beyond these of a structure or a trait has a row.
const FIELDS_MAX: usize = 12;
const METHODS_MAX: usize = 60;
const BOOLS_MAX: usize = 3;
const TRAIT_METHODS_MAX: usize = 12;
/// Pieces of code that stand twice count from this length on.
const PIECE_LINES: usize = 6;
const PIECE_CHARS_MIN: usize = 120;
/// Words that only this project uses so, and the field's.
const WORDS: [(&str, &str); 22] = [
    ("octet", "byte"),
    ("place", "slot"),
    ("anchor", "lifetime handle"),
    ("channel", "pipe"),
    ("lane", "pipe"),
    ("told", "notified"),
    ("head", "header"),
    ("kept", "cached"),
    ("shown", "presented"),
    ("beside", "asynchronous"),
    ("home", "owner queue"),
    ("turn", "quantum"),
    ("bell", "eventfd"),
    ("news", "event"),
    ("ahead", "prefetched"),
    ("bed", "harness"),
    ("owed", "pending"),
    ("vain", "spurious"),
    ("porter", "control server"),
    ("nap", "coalescing sleep"),
    ("hoard", "reclaimable receive memory"),
    ("manner", "socket state"),
];
const TABLE: &str = "ratchet.toml";
const HEADER: &str = "\
# Numbers of the source that only go down, for the crates that layers.toml does not call tools, tests aside. `make lint`
# compares them with the source (crates/tests/tests/structure/ratchets.rs) and fails for a number that has risen and for one
# that has fallen and is not recorded. `scripts/ratchets.sh` shows what each is made of, `scripts/ratchets.sh write`
# records what fell. Do not mend conflicts of a merge by hand: take either side and run `scripts/ratchets.sh write all`.
";
/// What the sections say, in their order.
const SECTIONS: [(&str, &str); 7] = [
    (
        "circles",
        "Files that use each other in a circle (the largest), and files in the longest chain, in which a circle counts with all of\n\
         # its files: by what they name, by what they call.",
    ),
    (
        "shapes",
        "Structures with more than 12 fields, 60 methods or 3 bools of their own, traits with more than 12 methods.",
    ),
    ("statics", "Variables of the whole process, and of each of its threads."),
    (
        "engine",
        "The engine's public methods, and those of them that toed calls and the simulator never does.",
    ),
    (
        "tcp",
        "Places that give a connection a state, or say who has it, past the table of that (state.rs, tenancy.rs).",
    ),
    (
        "words",
        "Names of items, fields, variants and functions that have a word which only this project uses so.",
    ),
    (
        "duplicates",
        "Lines that stand elsewhere as well, in a piece of six lines or more; definitions of types whose name another type has, too.\n\
         # Without the first of each.",
    ),
];

/// A number, and what it is made of.
#[derive(Clone, Debug, Default)]
struct Number {
    value: usize,
    parts: Vec<String>,
}

/// By section, by row, by what is counted.
type Table<T> = BTreeMap<String, BTreeMap<String, BTreeMap<String, T>>>;

#[derive(Debug, Default)]
struct Measured(Table<Number>);

impl Measured {
    fn add(&mut self, section: &str, row: &str, what: &str, parts: Vec<String>) {
        self.set(section, row, what, Number { value: parts.len(), parts });
    }

    fn set(&mut self, section: &str, row: &str, what: &str, number: Number) {
        let rows = self.0.entry(section.to_owned()).or_default();
        rows.entry(row.to_owned()).or_default().insert(what.to_owned(), number);
    }

    /// Only if there is something.
    fn add_some(&mut self, section: &str, row: &str, what: &str, parts: Vec<String>) {
        if !parts.is_empty() {
            self.add(section, row, what, parts);
        }
    }
}

/// The folders of the crates that run beside a user's programs.
fn product(rules: &Rules) -> Vec<String> {
    let unknown: Vec<_> = rules.tools.iter().filter(|name| !rules.order.contains(name)).collect();
    assert!(unknown.is_empty(), "tools of layers.toml that are no crates: {unknown:?}");
    let product = rules.order.iter().filter(|name| !rules.tools.contains(*name));
    product.map(|name| name.trim_start_matches("toe-").to_owned()).collect()
}

fn measure() -> Measured {
    let rules = rules();
    let sources = source::all(workspace());
    let product = product(&rules);
    let crates: Vec<Krate> = product.iter().map(|folder| Krate::new(folder, &sources)).collect();
    let mut measured = Measured::default();
    for (folder, krate) in product.iter().zip(&crates) {
        circles(&mut measured, krate, folder, &rules.folders);
        for (path, shape) in shapes::shapes(krate) {
            add_shape(&mut measured, folder, &path, shape);
        }
        let statics = shapes::statics(krate);
        measured.add_some("statics", folder, "process", statics.of_process);
        measured.add_some("statics", folder, "thread", statics.of_threads);
    }
    let find = |name: &str| &crates[product.iter().position(|folder| folder == name).expect("a crate")];
    let hosts = |source: &Source| {
        source.code.matches("HostMemory for ").map(|_| source.path.clone()).collect::<Vec<_>>()
    };
    measured.add("engine", "host_memory", "implementations", sources.iter().flat_map(hosts).collect());
    engine_calls(&mut measured, find("engine"), find("daemon"), &Krate::new("sim", &sources));
    let tables = ["crates/tcp/src/state.rs", "crates/engine/src/flow/tenancy.rs"];
    let past = [find("tcp"), find("engine")].map(|krate| shapes::states_set(krate, &tables)).concat();
    measured.add("tcp", "state", "set_past_the_table", past);
    let names: Vec<Name> = crates.iter().flat_map(shapes::names).collect();
    add_names(&mut measured, &names);
    let of_product = sources.iter().filter(|source| is_product(source, &product));
    measured.set("duplicates", "code", "lines", repeated_lines(of_product));
    measured
}

/// Part of a crate itself, not one of its examples.
fn is_product(source: &Source, product: &[String]) -> bool {
    product.contains(&source.krate) && source.path.starts_with(&format!("crates/{}/src/", source.krate))
}

/// For the crate and for those of `folders` that are in it.
fn circles(measured: &mut Measured, krate: &Krate, name: &str, folders: &[String]) {
    let root = format!("crates/{name}/src/");
    let below = folders.iter().filter(|folder| folder.starts_with(&root));
    for (kind, graph) in [("name", imports::graph(krate)), ("call", calls::graph(krate))] {
        for folder in [&root].into_iter().chain(below.clone()) {
            let inside = |node: &usize| krate.files[*node].path.starts_with(folder.as_str());
            let part = graph.restricted(inside);
            let path = |node: usize| krate.files[node].path.as_str();
            let circle = part.largest_circle();
            let uses = |node: &usize| {
                let used = part.used_among(*node, &circle).into_iter();
                let used = used.map(|used| path(used).trim_start_matches(root.as_str())).collect::<Vec<_>>();
                format!("{} -> {}", path(*node), used.join(", "))
            };
            let chain = part.longest_chain().into_iter().map(path);
            let row = folder.trim_start_matches("crates/").trim_end_matches('/').replace("/src", "");
            measured.add("circles", &row, &format!("{kind}_circle"), circle.iter().map(uses).collect());
            measured.add("circles", &row, &format!("{kind}_chain"), chain.map(str::to_owned).collect());
        }
    }
}

/// A row is called as the crate and the structure are, so that this may move to another file.
fn add_shape(measured: &mut Measured, folder: &str, path: &str, shape: Shape) {
    let methods_max = if shape.is_trait { TRAIT_METHODS_MAX } else { METHODS_MAX };
    let limits = [
        ("fields", shape.fields, FIELDS_MAX),
        ("methods", shape.methods, methods_max),
        ("bools", shape.bools, BOOLS_MAX),
    ];
    let short = format!("{folder}::{}", path.rsplit("::").next().unwrap_or(path));
    let is_taken = measured.0.get("shapes").is_some_and(|rows| rows.contains_key(&short));
    let row = if is_taken { path } else { &short };
    for (what, parts, _) in limits.into_iter().filter(|(_, parts, max)| parts.len() > *max) {
        measured.add("shapes", row, what, parts);
    }
}

fn engine_calls(measured: &mut Measured, engine: &Krate, daemon: &Krate, sim: &Krate) {
    let shapes = shapes::shapes(engine);
    let public = |name: &str| {
        let found = shapes.iter().find(|(path, _)| path.ends_with(name));
        found.expect("it is the engine's").1.public_methods.iter().cloned().collect::<Vec<_>>()
    };
    let (calls, views) = (public("::Engine"), public("::EngineView"));
    let all: BTreeSet<String> = calls.iter().chain(&views).cloned().collect();
    let made = |by: &Krate| -> BTreeSet<String> {
        let calls = shapes::calls_of_engine(by).into_iter().filter(|call| all.contains(call));
        calls.chain(shapes::inputs_of_engine(by)).collect()
    };
    measured.add("engine", "calls", "not_simulated", made(daemon).difference(&made(sim)).cloned().collect());
    measured.add("engine", "calls", "public", calls);
    measured.add("engine", "calls", "views", views);
}

fn add_names(measured: &mut Measured, names: &[Name]) {
    for (word, _) in WORDS {
        let plural = format!("{word}s");
        let has = |name: &&Name| shapes::words(&name.name).iter().any(|w| w == word || *w == plural);
        let parts = names.iter().filter(has).map(|name| format!("{} {}", name.file, name.name)).collect();
        measured.add_some("words", word, "names", parts);
    }
    let mut types: BTreeMap<&str, Vec<&Name>> = BTreeMap::new();
    names.iter().filter(|name| name.is_type).for_each(|name| types.entry(&name.name).or_default().push(name));
    let mut repeated: Vec<(&str, Vec<&Name>)> =
        types.into_iter().filter(|(_, same)| same.len() > 1).collect();
    repeated.sort_by_key(|(name, same)| (std::cmp::Reverse(same.len()), *name));
    let number = Number {
        value: repeated.iter().map(|(_, same)| same.len() - 1).sum(),
        parts: repeated.iter().map(|(name, same)| format!("{name}: {}", files_of(same))).collect(),
    };
    measured.set("duplicates", "type_names", "definitions", number);
}

fn files_of(names: &[&Name]) -> String {
    let files: Vec<&str> = names.iter().map(|name| name.file.trim_start_matches("crates/")).collect();
    files.join(", ")
}

/// Lines of code that stand elsewhere, too, in a piece of [`PIECE_LINES`] or more: how many, and which.
fn repeated_lines<'a>(sources: impl Iterator<Item = &'a Source>) -> Number {
    let mut first: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let files: Vec<(&str, Vec<(usize, &str)>)> =
        sources.map(|source| (source.path.as_str(), lines_of_code(source))).collect();
    let mut number = Number::default();
    for (index, (path, lines)) in files.iter().enumerate() {
        // Up to here lines have been counted.
        let mut counted = 0;
        for at in 0..(lines.len() + 1).saturating_sub(PIECE_LINES) {
            let piece =
                lines[at..][..PIECE_LINES].iter().map(|(_, line)| *line).collect::<Vec<_>>().join("\n");
            if piece.len() < PIECE_CHARS_MIN {
                continue;
            }
            let Some((file, line)) = first.get(&piece) else {
                first.insert(piece, (index, lines[at].0));
                continue;
            };
            if at >= counted {
                number.parts.push(format!("{path}:{} = {}:{line}", lines[at].0, files[*file].0));
            }
            number.value += at + PIECE_LINES - counted.max(at);
            counted = at + PIECE_LINES;
        }
    }
    number
}

/// With their numbers, less what is empty, says something or only brings names in.
fn lines_of_code(source: &Source) -> Vec<(usize, &str)> {
    let code = source.code_without_tests().lines().map(str::trim);
    let lines = code.zip(source.text.lines()).enumerate();
    let is_code = |code: &str| !code.is_empty() && !code.starts_with("use ");
    lines.filter(|(_, (code, _))| is_code(code)).map(|(at, (_, text))| (at + 1, text.trim())).collect()
}

fn recorded() -> Table<usize> {
    let text = fs::read_to_string(workspace().join(TABLE)).unwrap_or_default();
    toml::from_str(&text).unwrap_or_else(|e| panic!("{TABLE}: {e}"))
}

/// One number that is not as it is recorded.
#[derive(Debug)]
struct Change {
    section: String,
    row: String,
    what: String,
    was: usize,
    is: Number,
}

impl Change {
    fn has_risen(&self) -> bool {
        self.is.value > self.was
    }

    fn line(&self) -> String {
        let Change { section, row, what, was, is } = self;
        let say = WORDS.iter().find(|(word, _)| section == "words" && word == row);
        let say = say.map(|(_, say)| format!(" (say: {say})")).unwrap_or_default();
        format!("[{section}] {row}, {what}: {was} -> {}{say}", is.value)
    }

    /// With its parts, as far as they fit.
    fn with_parts(&self) -> String {
        let mut line = self.line();
        let parts = &self.is.parts;
        parts.iter().take(60).for_each(|part| line += &format!("\n      {part}"));
        if parts.len() > 60 {
            line += &format!("\n      and {} more: scripts/ratchets.sh {}", parts.len() - 60, self.row);
        }
        line
    }
}

fn changes(measured: &Measured, recorded: &Table<usize>) -> Vec<Change> {
    let all = |table: &Table<()>| -> BTreeSet<(String, String, String)> {
        let rows =
            table.iter().flat_map(|(section, rows)| rows.iter().map(move |(row, what)| (section, row, what)));
        rows.flat_map(|(s, r, what)| what.keys().map(move |w| (s.clone(), r.clone(), w.clone()))).collect()
    };
    let keys = |is: Table<()>, was: Table<()>| all(&is).union(&all(&was)).cloned().collect::<Vec<_>>();
    let (is, was) = (hollow(&measured.0), hollow(recorded));
    let changes = keys(is, was).into_iter().map(|(section, row, what)| {
        let is = measured.0.get(&section).and_then(|rows| rows.get(&row)?.get(&what)).cloned();
        let was = recorded.get(&section).and_then(|rows| rows.get(&row)?.get(&what)).copied();
        Change { section, row, what, was: was.unwrap_or_default(), is: is.unwrap_or_default() }
    });
    changes.filter(|change| change.is.value != change.was).collect()
}

fn hollow<T>(table: &Table<T>) -> Table<()> {
    let row = |row: &BTreeMap<String, T>| row.keys().map(|what| (what.clone(), ())).collect();
    let rows = |rows: &BTreeMap<String, BTreeMap<String, T>>| {
        rows.iter().map(|(k, v)| (k.clone(), row(v))).collect()
    };
    table.iter().map(|(section, all)| (section.clone(), rows(all))).collect()
}

/// The table as it is written: what was measured, but for what has risen, which stays as it is recorded unless `all` is said.
fn written(measured: &Measured, changes: &[Change], all: bool) -> String {
    let mut text = HEADER.to_owned();
    for (section, says) in SECTIONS {
        let _ = write!(text, "\n# {says}\n[{section}]\n");
        for (row, numbers) in measured.0.get(section).into_iter().flatten() {
            let value = |what: &String, number: &Number| {
                let is_it = |c: &&Change| c.section == section && c.row == *row && c.what == *what;
                let risen = changes.iter().find(is_it).filter(|change| change.has_risen() && !all);
                risen.map_or(number.value, |change| change.was)
            };
            let numbers = numbers.iter().map(|(what, number)| format!("{what} = {}", value(what, number)));
            let key = if row.contains([':', '/']) { format!("\"{row}\"") } else { row.clone() };
            let _ = writeln!(text, "{key} = {{ {} }}", numbers.collect::<Vec<_>>().join(", "));
        }
    }
    text
}

#[test]
fn numbers_only_go_down() {
    if std::env::var("TOE_SHOW").is_ok_and(|wanted| wanted == "lines") {
        return show_lines();
    }
    let measured = measure();
    if let Ok(wanted) = std::env::var("TOE_SHOW") {
        return show(&measured, &wanted);
    }
    let mut changes = changes(&measured, &recorded());
    if let Ok(what) = std::env::var("TOE_WRITE") {
        let all = what == "all";
        fs::write(workspace().join(TABLE), written(&measured, &changes, all)).expect("written");
        changes.retain(|change| change.has_risen() && !all);
    }
    let (risen, fallen): (Vec<_>, Vec<_>) = changes.iter().partition(|change| change.has_risen());
    let mut text = String::new();
    if !risen.is_empty() {
        text += "\nNumbers of the source have risen, which only go down. Take back what raised them, or bring something else down as\n\
                 much. Only where work of others was merged, or where nothing else will do: `scripts/ratchets.sh write all`, and the\n\
                 commit says why.";
        risen.iter().for_each(|change| text += &format!("\n  {}", change.with_parts()));
    }
    if !fallen.is_empty() {
        text += "\nNumbers of the source have fallen: `scripts/ratchets.sh write` records that, so that they stay down.";
        fallen.iter().for_each(|change| text += &format!("\n  {}", change.line()));
    }
    assert!(text.is_empty(), "{text}\n");
}

/// A word of this project's own that names still have is explained to who meets it, with the field's beside it.
#[test]
fn words_of_our_own_are_in_the_glossary() {
    let glossary = fs::read_to_string(workspace().join("GLOSSARY.md")).expect("the glossary");
    let recorded = recorded();
    let is_used = |word: &&(&str, &str)| recorded["words"].contains_key(word.0);
    let is_missing = |(own, field): &&(&str, &str)| {
        let entry = glossary.split("\n\n").find(|entry| entry.starts_with(&format!("**{own}**")));
        entry.is_none_or(|entry| !entry.contains(field))
    };
    let missing: Vec<_> = WORDS.iter().filter(is_used).filter(is_missing).collect();
    assert!(missing.is_empty(), "GLOSSARY.md has no entry for these words with the field's: {missing:?}");
}

/// Every number whose section or row has `wanted` in its name, with what it is made of; all of the table if nothing is wanted.
fn show(measured: &Measured, wanted: &str) {
    for (section, rows) in &measured.0 {
        for (row, numbers) in rows {
            if !(section.contains(wanted) || row.contains(wanted)) {
                continue;
            }
            for (what, number) in numbers {
                println!("[{section}] {row}, {what}: {}", number.value);
                let parts = number.parts.iter().filter(|_| !wanted.is_empty());
                parts.for_each(|part| println!("      {part}"));
            }
        }
    }
}

/// Lines of each crate, those with code and those of the file, without tests.
fn show_lines() {
    let (rules, sources) = (rules(), source::all(workspace()));
    let mut of_crates: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let product = product(&rules);
    for source in sources.iter().filter(|source| is_product(source, &product)) {
        let code = source.code_without_tests();
        let lines = of_crates.entry(source.krate.clone()).or_default();
        lines.0 += code.lines().filter(|line| !line.trim().is_empty()).count();
        lines.1 += code.lines().count();
    }
    println!("{:10} {:>8} {:>8}", "crate", "code", "lines");
    let row = |name: &str, lines: (usize, usize)| println!("{name:10} {:>8} {:>8}", lines.0, lines.1);
    product
        .iter()
        .filter_map(|name| Some((name, of_crates.get(name)?)))
        .for_each(|(name, lines)| row(name, *lines));
    let sum = |names: &[&str]| {
        let these = of_crates.iter().filter(|(name, _)| names.is_empty() || names.contains(&name.as_str()));
        these.fold((0, 0), |sum, (_, lines)| (sum.0 + lines.0, sum.1 + lines.1))
    };
    // What was engine and daemon when this was counted first.
    row("engine's", sum(&["tcp", "engine", "daemon"]));
    row("all", sum(&[]));
}
