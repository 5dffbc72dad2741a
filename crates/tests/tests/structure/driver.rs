//! What the engine's module says of the calls of its driver, held to the source.

use crate::shapes;
use crate::tree::Krate;
use std::collections::BTreeSet;
use toe_tests::bins::workspace;
use toe_tests::source;

const MODULE: &str = "crates/engine/src/engine/mod.rs";

#[test]
fn the_engines_module_names_its_calls() {
    let sources = source::all(workspace());
    let shapes = shapes::shapes(&Krate::new("engine", &sources));
    let (_, engine) = shapes.iter().find(|(path, _)| path.ends_with("::Engine")).expect("the engine");
    let text = &sources.iter().find(|source| source.path == MODULE).expect("the module").text;
    let text: String = text.lines().map_while(|line| line.strip_prefix("//!")).collect::<Vec<_>>().join("\n");
    let (kinds, round) = text.split_once("A round of the daemon").expect("the order of a round");
    let in_code = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let of_kinds = in_code(kinds.split_once("| kind |").expect("the kinds of calls").1);
    let mut findings = Vec::new();
    for method in &engine.public_methods {
        let is_said = |said: &String| {
            said == method || said.strip_suffix('*').is_some_and(|start| method.starts_with(start))
        };
        if engine.changes_by(method) && !of_kinds.iter().any(is_said) {
            findings.push(format!("{method} is of no kind"));
        }
    }
    let calls = |said: &&String| said.starts_with(|c: char| c.is_lowercase()) && !said.contains(['/', '*']);
    let gone = of_kinds.iter().filter(calls).filter(|said| !engine.public_methods.contains(*said));
    findings.extend(gone.map(|said| format!("{said} is no call of the engine's")));
    let polls =
        |names: &BTreeSet<String>| names.iter().filter(|name| name.starts_with("poll_")).cloned().collect();
    let (said, there): (BTreeSet<String>, BTreeSet<String>) =
        (polls(&in_code(round)), polls(&engine.public_methods));
    findings.extend(
        said.symmetric_difference(&there)
            .map(|poll| format!("{poll}: the order of a round is without it, or it is gone")),
    );
    crate::expect_none(MODULE, &findings);
}
