//! Every script that Linux's TCP is said to follow, against Linux's TCP: what checks the scripts themselves.

use std::io::Write;
use std::path::Path;
use toe_script::{files, verdict};

/// Scripts wait more than they work.
const THREADS: usize = 12;

#[test]
fn linux_does_what_scripts_say_of_it() {
    if !rustix::process::geteuid().is_root() {
        // Not by a macro, whose output is kept from whoever runs the tests.
        let said = "not run: scripts against Linux, as making network namespaces needs root\n";
        std::io::stderr().write_all(said.as_bytes()).expect("standard error");
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let scripts = files::read_all(&folder).unwrap_or_else(|error| panic!("{error}"));
    let verdicts = verdict::all(&scripts, THREADS, |script| verdict::with_linux(script, false));
    let report = verdict::report(&scripts, &verdicts);
    println!("{report}");
    assert!(!verdicts.iter().any(verdict::Verdict::is_failure), "{report}");
}
