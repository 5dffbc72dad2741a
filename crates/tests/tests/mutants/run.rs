//! Running the scripts, tests and seeds of the copy.

use crate::tree::VARIABLE;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use toe_tests::bins::workspace;

/// Who takes longer has met a defect that keeps it from ending: whole runs take well under a second.
const ENDLESS: &str = "60";
const THREADS: usize = 2;
/// So many seeds have to find a defect, and may take so many seconds.
const SEEDS: &str = "2000";
const SEEDS_ENDLESS: &str = "300";
/// Proofs that begin so are seeds of the simulator that have one fault, or of its worlds that are apart.
pub const SEEDS_WITH: &str = "sim/";

/// What a script or a test says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    /// It had to be ended.
    Endless,
    /// There is no such script or test in the copy.
    Unknown,
}

/// The programs of the copy.
#[derive(Debug)]
pub struct Copy {
    /// A crate's unit tests.
    pub tests: BTreeMap<String, PathBuf>,
    /// toe-script.
    pub runner: PathBuf,
    /// toe-sim.
    pub simulator: PathBuf,
}

impl Copy {
    /// A script, `rfc9293/active-open`, a test, `tcp/src/rtt.rs::name`, or seeds with a fault, `sim/shares`, with that defect.
    pub fn run(&self, proof: &str, mutant: Option<u32>) -> Outcome {
        if let Some(fault) = proof.strip_prefix(SEEDS_WITH) {
            return self.run_seeds(fault, mutant);
        }
        let Some((file, test)) = proof.split_once("::") else {
            return self.run_script(proof, mutant);
        };
        let package =
            file.split_once("/src/").map_or("toe-engine".to_owned(), |(name, _)| format!("toe-{name}"));
        let Some(tests) = self.tests.get(&package) else { return Outcome::Unknown };
        let mut command = limited(tests, ENDLESS);
        // Of two tests of one name in other modules both count.
        command.args([test, "--test-threads=1"]);
        let (outcome, said) = run(command, mutant);
        if said.contains("running 0 tests") { Outcome::Unknown } else { outcome }
    }

    fn run_seeds(&self, fault: &str, mutant: Option<u32>) -> Outcome {
        let mut command = limited(&self.simulator, SEEDS_ENDLESS);
        command.args(["--jobs", "1", "--seeds", SEEDS]);
        match fault {
            "datagrams" | "messages" | "files" => command.arg(format!("--{fault}")),
            fault => command.args(["--only", fault]),
        };
        run(command, mutant).0
    }

    fn run_script(&self, name: &str, mutant: Option<u32>) -> Outcome {
        let script = workspace().join("crates/script/scripts").join(name).with_extension("toe");
        if !script.exists() {
            return Outcome::Unknown;
        }
        let mut command = limited(&self.runner, ENDLESS);
        command.arg(script);
        run(command, mutant).0
    }
}

/// The program, ended when it does not by itself.
fn limited(program: &PathBuf, secs: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", secs]).arg(program);
    command
}

fn run(mut command: Command, mutant: Option<u32>) -> (Outcome, String) {
    command.env_remove(VARIABLE).env("RUST_BACKTRACE", "0").stderr(Stdio::null()).stdin(Stdio::null());
    mutant.into_iter().for_each(|number| _ = command.env(VARIABLE, number.to_string()));
    let output = command.output().expect("timeout(1) is there");
    let outcome = match output.status.code() {
        Some(0) => Outcome::Passed,
        // It ends itself by the signal as well.
        None | Some(137) => Outcome::Endless,
        Some(_) => Outcome::Failed,
    };
    (outcome, String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Does it for each, on as many threads as there are processors for it; what comes of it is in the order of `all`.
pub fn each<T: Sync, R: Send>(all: &[T], what: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some((at, one)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, all.get(at)?)))
                {
                    let result = what(one);
                    results.lock().expect("no thread panics with it").insert(at, result);
                }
            });
        }
    });
    results.into_inner().expect("no thread panics with it").into_values().collect()
}
