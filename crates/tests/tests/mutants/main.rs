//! Evidence that bites: for each MUST of docs/conformance.md a defect is planted that takes the row's behaviour away, and one of the
//! scripts or tests that the row names has to fail. The defects stand in `crates/tests/mutants`, a file for each RFC.
//!
//! `seeds.toml` has defects of who has a connection, which the simulator has to find.
//!
//! All of them are compiled into one copy of the source ([`tree`]), each behind a question which one is meant; so the copy is built once
//! and a defect costs no more than the run of its scripts ([`run`]).
//!
//! `make lint` checks what the files say; `make mutants` builds the copy and runs them all.
#![forbid(unsafe_code)]

mod planted;
mod run;
mod tree;

use planted::Mutant;
use run::Outcome;
use std::collections::BTreeSet;
use std::env;
use toe_tests::conformance::{Page, Row, State, page, page_text};

/// MUSTs that are shown: each has to have a mutant.
fn wanted(page: &Page) -> impl Iterator<Item = &Row> {
    page.rows.iter().filter(|row| row.level == "MUST" && row.state == State::Presented)
}

#[test]
fn every_must_has_its_mutant() {
    let page = page(&page_text());
    let files = planted::read_all();
    let mut findings = Vec::new();
    for row in wanted(&page) {
        let key = planted::key(row);
        let count = files.iter().filter(|file| file.has(&row.rfc, &key)).count();
        if count == 0 {
            findings.push(format!("{}: nothing is planted for `{key}`", row.name()));
        }
    }
    assert!(findings.is_empty(), "{} rows without a mutant:\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn what_is_planted_fits_the_source() {
    let page = page(&page_text());
    let files = planted::read_all();
    let mutants = planted::mutants(&files, &page).unwrap_or_else(|wrong| panic!("{wrong}"));
    tree::fits(&mutants).unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// Says how a mutant that is not found reads; `Ok`: it is found.
fn judge(mutant: &Mutant, outcomes: &[(String, Outcome)]) -> Result<(), String> {
    if outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed | Outcome::Endless)) {
        return Ok(());
    }
    let names: Vec<&str> = outcomes.iter().map(|(name, _)| name.as_str()).collect();
    Err(format!("{}: not found by {}\n      planted: {}", mutant.name(), names.join(", "), mutant.what))
}

/// `TOE_MUTANTS=all`, or so many, spread over all of them; `TOE_MUTANT_NAMES=text` those whose names hold that. Without the first it
/// does nothing: it builds a copy of the source.
#[test]
fn each_mutant_is_found() {
    let Ok(count) = env::var("TOE_MUTANTS") else { return eprintln!("`make mutants` runs this") };
    let page = page(&page_text());
    let files = planted::read_all();
    let all = planted::mutants(&files, &page).unwrap_or_else(|wrong| panic!("{wrong}"));
    let chosen = chosen(&all, &count);
    eprintln!("{} of {} mutants; the copy of the source is being built", chosen.len(), all.len());
    let copy = tree::build(&all).unwrap_or_else(|wrong| panic!("{wrong}"));
    let proofs: BTreeSet<&str> =
        chosen.iter().flat_map(|mutant| mutant.found_by.iter().map(String::as_str)).collect();
    let broken: Vec<String> = run::each(&proofs.into_iter().collect::<Vec<_>>(), |proof| {
        (copy.run(proof, None), (*proof).to_owned())
    })
    .into_iter()
    .filter(|(outcome, _)| *outcome != Outcome::Passed)
    .map(|(outcome, name)| format!("{name}: {outcome:?}"))
    .collect();
    assert!(broken.is_empty(), "without a mutant these do not pass:\n{}", broken.join("\n"));
    let verdicts = run::each(&chosen, |mutant| {
        let outcomes: Vec<_> = mutant
            .found_by
            .iter()
            .map(|proof| (proof.clone(), copy.run(proof, Some(mutant.number))))
            .collect();
        (judge(mutant, &outcomes), silent(&outcomes), mutant.name())
    });
    let mut survivors = Vec::new();
    for (verdict, silent, name) in verdicts {
        match verdict {
            Ok(()) => eprintln!("found   {name}{silent}"),
            Err(survivor) => {
                eprintln!("MISSED  {survivor}");
                survivors.push(survivor);
            }
        }
    }
    assert!(survivors.is_empty(), "{} mutants are not found:\n{}", survivors.len(), survivors.join("\n"));
}

/// Proofs of a row that did not notice, beside one that did: they show something else of it.
fn silent(outcomes: &[(String, Outcome)]) -> String {
    let silent: Vec<&str> = outcomes
        .iter()
        .filter(|(_, outcome)| *outcome == Outcome::Passed)
        .map(|(name, _)| name.as_str())
        .collect();
    if silent.is_empty() { String::new() } else { format!(" (not by {})", silent.join(", ")) }
}

fn chosen<'a>(all: &'a [Mutant], count: &str) -> Vec<&'a Mutant> {
    let named = env::var("TOE_MUTANT_NAMES").unwrap_or_default();
    let fitting: Vec<&Mutant> = all.iter().filter(|mutant| mutant.name().contains(&named)).collect();
    assert!(!fitting.is_empty(), "no mutant's name holds `{named}`");
    let count: usize = match count {
        "all" => fitting.len(),
        count => count.parse().expect("TOE_MUTANTS is a number, or `all`"),
    };
    let step = fitting.len().div_ceil(count.clamp(1, fitting.len()));
    fitting.into_iter().step_by(step).collect()
}
