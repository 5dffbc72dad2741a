//! Every script that Linux's TCP is said to follow, against Linux's TCP: what checks the scripts themselves.

use std::path::Path;
use toe_script::{files, verdict};

/// Scripts wait more than they work.
const THREADS: usize = 12;

#[test]
fn linux_does_what_scripts_say_of_it() {
    if !rustix::process::geteuid().is_root() {
        println!("not run: making network namespaces needs root");
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let scripts = files::read_all(&folder).unwrap_or_else(|error| panic!("{error}"));
    let verdicts = verdict::all(&scripts, THREADS, |script| verdict::with_linux(script, false));
    let report = verdict::report(&scripts, &verdicts);
    println!("{report}");
    assert!(!verdicts.iter().any(verdict::Verdict::is_failure), "{report}");
}
