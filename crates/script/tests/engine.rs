//! Every script against the engine, in virtual time.

use std::path::Path;
use toe_script::{files, verdict};

#[test]
fn every_script_holds_for_the_engine() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let scripts = files::read_all(&folder).unwrap_or_else(|error| panic!("{error}"));
    let verdicts = verdict::all(&scripts, 2, verdict::with_engine);
    let report = verdict::report(&scripts, &verdicts);
    println!("{report}");
    assert!(!verdicts.iter().any(verdict::Verdict::is_failure), "{report}");
}
