//! Scripts against the whole of OpenTOE: an engine's process with a TAP link, and a program under the switch.

use std::path::{Path, PathBuf};
use toe_script::{files, verdict};

/// Each script has an engine and a program of its own: few at a time, or they are late for each other.
const THREADS: usize = 6;

#[test]
#[ignore = "in real time, on a quiet machine: `make acceptance` runs it"]
fn the_whole_does_what_scripts_say() {
    if !rustix::process::geteuid().is_root() {
        println!("not run: making network namespaces needs root");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let programs = std::env::var_os("TOE_BIN_DIR").map_or_else(|| root.join("target/release"), PathBuf::from);
    if !programs.join("toed").exists() {
        println!("not run: there is no toed in {}: run `make programs`", programs.display());
        return;
    }
    let scripts =
        files::read_all(&root.join("crates/script/scripts")).unwrap_or_else(|error| panic!("{error}"));
    let verdicts = verdict::all(&scripts, THREADS, |script| verdict::with_whole(script, &programs));
    let report = verdict::report(&scripts, &verdicts);
    println!("{report}");
    assert!(!verdicts.iter().any(verdict::Verdict::is_failure), "{report}");
}
