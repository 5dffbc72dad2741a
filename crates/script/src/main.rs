//! `toe-script FILE...`: runs packet scripts against the engine, or with `--linux` against Linux's TCP.

#![forbid(unsafe_code)]

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use toe_script::{files, verdict};

#[derive(Debug, Parser)]
#[command(about = "Runs packet scripts (docs/packet-scripts.md) against the engine or against Linux's TCP")]
struct Options {
    /// Scripts, or folders of them.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Against Linux, over a link in a network namespace of each script's own; needs root.
    #[arg(long)]
    linux: bool,
    /// With --linux: also scripts that take minutes.
    #[arg(long, requires = "linux")]
    slow: bool,
    /// Scripts that run at the same time.
    #[arg(long, default_value_t = 8)]
    threads: usize,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let mut scripts = Vec::new();
    for path in &options.paths {
        match files::read_all(path) {
            Ok(found) => scripts.extend(found),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(2);
            }
        }
    }
    let one = |script: &_| {
        if options.linux { verdict::with_linux(script, options.slow) } else { verdict::with_engine(script) }
    };
    let verdicts = verdict::all(&scripts, options.threads.max(1), one);
    print!("{}", verdict::report(&scripts, &verdicts));
    ExitCode::from(u8::from(verdicts.iter().any(verdict::Verdict::is_failure)))
}
