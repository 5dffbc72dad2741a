//! The defects as `crates/tests/mutants` has them.

use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs;
use toe_tests::bins::workspace;
use toe_tests::conformance::{Page, Row, code_in};
use toe_tests::source;

const FOLDER: &str = "crates/tests/mutants";

/// A file: of an RFC whose rows it has defects for, or of none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    #[serde(skip)]
    name: String,
    /// The table's name in the page: `9293`, or a draft's.
    rfc: Option<String>,
    #[serde(default)]
    mutant: Vec<Planted>,
    #[serde(default)]
    unplanted: Vec<Unplanted>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Planted {
    /// Whose behaviour it takes away: [`key`] of a row; without `rfc`, a name.
    row: String,
    /// What is wrong then.
    what: String,
    /// In the page's short form.
    file: String,
    /// Text from which on `find` is looked for: something that is there once.
    after: Option<String>,
    /// An expression, or statements if it ends with `;` or `}`; there once, or the first behind `after`.
    find: String,
    /// What is there instead.
    put: String,
    /// Scripts and tests of which one has to fail; the row's, if it is left out.
    #[serde(default)]
    found_by: Vec<String>,
}

/// A row whose behaviour cannot be taken away in the copy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unplanted {
    row: String,
    why: String,
}

/// A defect, with all that is needed to plant and to find it.
#[derive(Debug)]
pub struct Mutant {
    /// From 1; the copy is asked for it by this.
    pub number: u32,
    rfc: String,
    row: String,
    pub what: String,
    pub file: String,
    pub after: Option<String>,
    pub find: String,
    pub put: String,
    pub found_by: Vec<String>,
}

impl Mutant {
    pub fn name(&self) -> String {
        format!("{} {}", self.rfc, self.row)
    }
}

impl File {
    pub fn has(&self, rfc: &str, key: &str) -> bool {
        self.rfc.as_deref() == Some(rfc)
            && (self.mutant.iter().any(|planted| planted.row == key)
                || self.unplanted.iter().any(|unplanted| unplanted.row == key))
    }
}

/// How a row is named here: `3.1 MUST-3: a receiver checks it`.
pub fn key(row: &Row) -> String {
    let number = row.number.as_ref().map(|number| format!(" {number}")).unwrap_or_default();
    format!("{}{number}: {}", row.section, row.what)
}

/// # Panics
/// When a file cannot be read.
pub fn read_all() -> Vec<File> {
    let folder = workspace().join(FOLDER);
    source::files(&folder, "toml")
        .into_iter()
        .map(|path| {
            let name = path.file_name().unwrap_or_default().display().to_string();
            let text = fs::read_to_string(&path).expect("a file of mutants");
            let file: File = toml::from_str(&text).unwrap_or_else(|error| panic!("{FOLDER}/{name}: {error}"));
            File { name, ..file }
        })
        .collect()
}

/// All of them, each with what has to find it.
pub fn mutants(files: &[File], page: &Page) -> Result<Vec<Mutant>, String> {
    let mut mutants = Vec::new();
    let mut names = BTreeSet::new();
    let mut number = 0;
    for file in files {
        let rfc = file.rfc.clone().unwrap_or_else(|| file.name.trim_end_matches(".toml").to_owned());
        let row_of = |name: &str| page.rows.iter().find(|row| row.rfc == rfc && key(row) == name);
        for unplanted in &file.unplanted {
            if row_of(&unplanted.row).is_none() {
                return Err(format!("{FOLDER}/{}: the page has no row `{}`", file.name, unplanted.row));
            }
            if unplanted.why.len() < 20 {
                return Err(format!(
                    "{FOLDER}/{}: say why nothing is planted for `{}`",
                    file.name, unplanted.row
                ));
            }
        }
        for planted in &file.mutant {
            number += 1;
            let mutant = mutant(number, &rfc, planted, file.rfc.as_ref().map(|_| row_of(&planted.row)))
                .map_err(|wrong| format!("{FOLDER}/{}: `{}`: {wrong}", file.name, planted.row))?;
            if !names.insert((mutant.name(), mutant.what.clone())) {
                return Err(format!("{FOLDER}/{}: `{}` is there twice", file.name, planted.row));
            }
            mutants.push(mutant);
        }
    }
    Ok(mutants)
}

/// Whether the copy has it: scripts, and unit tests of its packages; whole programs do not run there.
fn is_in_copy(proof: &str) -> bool {
    let Some((file, _)) = proof.split_once("::") else { return true };
    let of_engine = workspace().join("crates/engine/src").join(file).exists();
    of_engine || ["base/src/", "wire/src/", "tcp/src/"].iter().any(|root| file.starts_with(root))
}

/// `row`: of a file that has an RFC, what the page has under that name.
fn mutant(number: u32, rfc: &str, planted: &Planted, row: Option<Option<&Row>>) -> Result<Mutant, String> {
    let presented: Vec<String> = match row {
        Some(None) => return Err("the page has no such row".to_owned()),
        Some(Some(row)) => {
            code_in(&row.presented).filter(|proof| is_in_copy(proof)).map(str::to_owned).collect()
        }
        None => Vec::new(),
    };
    let found_by = if planted.found_by.is_empty() { presented.clone() } else { planted.found_by.clone() };
    if let Some(other) = found_by.iter().find(|proof| row.is_some() && !presented.contains(proof)) {
        return Err(format!("{other} does not stand in the row: put it there, if it shows it"));
    }
    if found_by.is_empty() {
        return Err("`found_by` names the scripts and tests".to_owned());
    }
    Ok(Mutant {
        number,
        rfc: rfc.to_owned(),
        row: planted.row.clone(),
        what: planted.what.clone(),
        file: planted.file.clone(),
        after: planted.after.clone(),
        find: planted.find.trim().to_owned(),
        put: planted.put.trim().to_owned(),
        found_by,
    })
}
