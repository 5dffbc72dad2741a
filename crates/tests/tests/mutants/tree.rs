//! A copy of the source in which all defects are planted, and the programs built from it.

use crate::planted::Mutant;
use crate::run::Copy;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use toe_tests::bins::workspace;

/// Whose sources may have defects, and whose tests find them; each uses toe-base.
const PACKAGES: [&str; 5] = ["toe-base", "toe-wire", "toe-tcp", "toe-engine", "toe-script"];
/// What is copied beside the crates.
const WHOLE: [&str; 3] = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"];
/// How the copy is asked which defect is meant.
pub const VARIABLE: &str = "TOE_MUTANT";

/// Behind toe-base's own code: `mutant(n)` is true in a run that is to have defect n. No program that anybody uses has it.
const QUESTION: &str = r#"
#[doc(hidden)]
pub fn mutant(number: u32) -> bool {
    static MEANT: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let read = || std::env::var("TOE_MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    *MEANT.get_or_init(read) == number
}
"#;

/// Where in a file something is replaced, and by what defects.
type Places<'a> = BTreeMap<(usize, usize), Vec<&'a Mutant>>;

/// Whether all defects can be planted, and a file is still Rust with the defects of one place in it.
pub fn fits(mutants: &[Mutant]) -> Result<(), String> {
    for (path, of_file) in by_file(mutants)? {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for (place, mutants) in places(&text, &of_file)? {
            let name = mutants[0].name();
            let planted = planted(&text, &Places::from([(place, mutants)]), "toe_base");
            syn::parse_file(&planted).map_err(|error| {
                format!("{name}: {error} with its defect: is `find` a whole expression or statement?")
            })?;
        }
    }
    Ok(())
}

/// Plants all defects in the copy and builds it.
pub fn build(mutants: &[Mutant]) -> Result<Copy, String> {
    let root = workspace().join("target/mutants");
    let tree = root.join("tree");
    let mut changed = BTreeMap::new();
    for (path, of_file) in by_file(mutants)? {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let question = if path.starts_with(workspace().join("crates/base")) { "crate" } else { "toe_base" };
        changed.insert(path, planted(&text, &places(&text, &of_file)?, question));
    }
    let base = workspace().join("crates/base/src/lib.rs");
    let text = changed.remove(&base).map_or_else(|| fs::read_to_string(&base), Ok);
    changed.insert(base, text.map_err(|error| error.to_string())? + QUESTION);
    let written = copy(&tree, &changed).map_err(|error| format!("{}: {error}", tree.display()))?;
    eprintln!("{written} files of the copy are new");
    compile(&tree, &root.join("target"))
}

/// The defects of each file, by its path.
fn by_file(mutants: &[Mutant]) -> Result<BTreeMap<PathBuf, Vec<&Mutant>>, String> {
    let mut files: BTreeMap<PathBuf, Vec<&Mutant>> = BTreeMap::new();
    for mutant in mutants {
        let below = |root: &str| Some(workspace().join(root).join(&mutant.file)).filter(|path| path.exists());
        let path = below("crates/engine/src").or_else(|| below("crates"));
        let path = path.ok_or_else(|| format!("{}: there is no file {}", mutant.name(), mutant.file))?;
        files.entry(path).or_default().push(mutant);
    }
    Ok(files)
}

fn places<'a>(text: &str, mutants: &[&'a Mutant]) -> Result<Places<'a>, String> {
    let mut places: Places<'a> = BTreeMap::new();
    for mutant in mutants {
        let wrong = |what: &str| format!("{}: in {}, {what}", mutant.name(), mutant.file);
        let from = match &mutant.after {
            None if text.matches(&mutant.find).count() > 1 => {
                return Err(wrong("`find` is there more than once: say behind what with `after`"));
            }
            None => 0,
            Some(after) => match text.matches(after).count() {
                0 => return Err(wrong("`after` is not there")),
                1 => text.find(after).unwrap_or_default() + after.len(),
                _ => return Err(wrong("`after` is there more than once")),
            },
        };
        let at = text[from..].find(&mutant.find).map(|at| from + at);
        let at = at.ok_or_else(|| wrong("`find` is not there"))?;
        places.entry((at, at + mutant.find.len())).or_default().push(mutant);
    }
    let spans: Vec<_> = places.iter().collect();
    for pair in spans.windows(2) {
        let ((_, end), first) = pair[0];
        let ((begin, _), second) = pair[1];
        if begin < end {
            let (first, second) = (first[0].name(), second[0].name());
            return Err(format!("{first} and {second} overlap: choose another place for one of them"));
        }
    }
    Ok(places)
}

/// The text with each defect behind the question whether it is meant.
fn planted(text: &str, places: &Places<'_>, question: &str) -> String {
    let mut out = String::new();
    let mut done = 0;
    for ((at, end), mutants) in places {
        let found = &text[*at..*end];
        let is_expression = !found.ends_with([';', '}']);
        out += &text[done..*at];
        out += if is_expression { "(" } else { "" };
        for mutant in mutants {
            out += &format!("if {question}::mutant({}) {{ {} }} else ", mutant.number, mutant.put);
        }
        out += &format!("{{ {found} }}");
        out += if is_expression { ")" } else { "" };
        done = *end;
    }
    out + &text[done..]
}

/// Writes what is another than it was, so that only that is compiled again, and removes what is no more; returns how many files are new.
fn copy(tree: &Path, changed: &BTreeMap<PathBuf, String>) -> std::io::Result<usize> {
    let mut written = 0;
    let mut files: Vec<PathBuf> = WHOLE.iter().map(|name| workspace().join(name)).collect();
    files_below(&workspace().join("crates"), &mut files)?;
    files_below(&workspace().join("include"), &mut files)?;
    let mut stale = Vec::new();
    if tree.join("crates").exists() {
        files_below(&tree.join("crates"), &mut stale)?;
    }
    let mut stale: BTreeSet<PathBuf> = stale.into_iter().collect();
    for from in files {
        let to = tree.join(from.strip_prefix(workspace()).expect("below the workspace"));
        stale.remove(&to);
        let content = match changed.get(&from) {
            Some(text) => text.clone().into_bytes(),
            None => fs::read(&from)?,
        };
        if fs::read(&to).is_ok_and(|old| old == content) {
            continue;
        }
        fs::create_dir_all(to.parent().expect("a folder"))?;
        fs::write(&to, content)?;
        written += 1;
    }
    stale.iter().try_for_each(fs::remove_file)?;
    Ok(written)
}

/// All files but those of corpora, of which no program is made.
fn files_below(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            files.push(entry.path());
        } else if entry.file_name() != "corpus" {
            files_below(&entry.path(), files)?;
        }
    }
    Ok(())
}

fn compile(tree: &Path, target: &Path) -> Result<Copy, String> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(tree).args([
        "test",
        "--no-run",
        "--locked",
        "--lib",
        "--bins",
        "--message-format=json",
    ]);
    PACKAGES.iter().for_each(|package| _ = cargo.args(["-p", package]));
    // What the defects leave unused is no news.
    cargo.env("CARGO_TARGET_DIR", target).env("RUSTFLAGS", "--cap-lints=allow");
    let output = cargo.stderr(std::process::Stdio::inherit()).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut tests = BTreeMap::new();
    for message in messages {
        if let Some(rendered) = message["message"]["rendered"].as_str() {
            eprint!("{rendered}");
        }
        let (name, file) = (message["target"]["name"].as_str(), message["executable"].as_str());
        if let (Some(name), Some(file), Some(true)) = (name, file, message["profile"]["test"].as_bool()) {
            let is_lib = message["target"]["kind"][0] == "lib";
            if is_lib {
                tests.insert(name.replace('_', "-"), PathBuf::from(file));
            }
        }
    }
    if !output.status.success() {
        return Err("the copy does not compile: a defect is no expression, or of another type".to_owned());
    }
    let [runner, simulator] = programs(tree, target)?;
    Ok(Copy { tests, runner, simulator })
}

/// The programs that run packet scripts, and seeds.
fn programs(tree: &Path, target: &Path) -> Result<[PathBuf; 2], String> {
    let names = ["toe-script", "toe-sim"];
    let mut cargo = Command::new("cargo");
    cargo.current_dir(tree).args(["build", "--locked"]);
    names.iter().for_each(|name| _ = cargo.args(["-p", name, "--bin", name]));
    cargo.env("CARGO_TARGET_DIR", target).env("RUSTFLAGS", "--cap-lints=allow");
    let status = cargo.status().map_err(|error| error.to_string())?;
    let built = || names.map(|name| target.join("debug").join(name));
    status.success().then(built).ok_or_else(|| "the copy's programs do not compile".to_owned())
}
