//! `toe-script FILE...`: runs packet scripts against the engine, with `--linux` against Linux's TCP, with
//! `--whole` against the whole of OpenTOE.

#![forbid(unsafe_code)]

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use toe_script::whole::LinkKind;
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
    /// Against the whole of OpenTOE, with the programs of this folder (target/release); needs root.
    #[arg(long, value_name = "FOLDER", conflicts_with = "linux")]
    whole: Option<PathBuf>,
    /// With --whole: over a TAP, or over a veth at the kernel's own address (xdp).
    #[arg(long, value_name = "tap|xdp", default_value = "tap", requires = "whole")]
    link: LinkKind,
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
    let one = |script: &_| match &options.whole {
        Some(programs) => verdict::with_whole(script, programs, options.link),
        None if options.linux => verdict::with_linux(script, options.slow),
        None => verdict::with_engine(script),
    };
    let verdicts = verdict::all(&scripts, options.threads.max(1), one);
    print!("{}", verdict::report(&scripts, &verdicts));
    ExitCode::from(u8::from(verdicts.iter().any(verdict::Verdict::is_failure)))
}
