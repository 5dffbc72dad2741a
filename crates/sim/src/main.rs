//! `toe-sim`: runs seeds, says how far it is and what was exercised, and for a seed that fails the one command that
//! runs it again.
#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use toe_engine::Counter;
use toe_script::stack::StackError;
use toe_sim::memory::Memory;
use toe_sim::swarm::Swarm;
use toe_sim::trace::{HEADER, Trace};
use toe_sim::{
    Checker, Failure, Fault, Outcome, Runner, Tallies, Tally, datagrams, files, linux, messages, run,
};

/// Engines, programs and bad links in virtual time, from one seed.
#[derive(Debug, Parser)]
#[command(name = "toe-sim", version, max_term_width = 100)]
struct Args {
    /// Run this seed only
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Print one line for each event (with --seed; docs/simulator.md explains the columns)
    #[arg(long, requires = "seed")]
    trace: bool,
    /// How many seeds to run
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Threads; 0: one for each processor
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Linux's TCP at the far end, in real time (needs root); a seed gives the same choices each time, not the same run
    #[arg(long)]
    linux: bool,
    /// Worlds of datagrams
    #[arg(long, conflicts_with_all = ["linux", "only", "trace"])]
    datagrams: bool,
    /// Worlds of messages
    #[arg(long, conflicts_with_all = ["linux", "datagrams", "only", "trace"])]
    messages: bool,
    /// Worlds of transfers between files and connections
    #[arg(long, conflicts_with_all = ["linux", "datagrams", "messages", "only", "trace"])]
    files: bool,
    /// Only this fault, and in every seed
    #[arg(long)]
    only: Option<Fault>,
    /// Go on after seeds that fail, and list them at the end
    #[arg(long)]
    keep_going: bool,
    /// Print how often each of the engine's counters was reached
    #[arg(long)]
    counters: bool,
}

/// Events before a failure that are printed.
const LAST_EVENTS: usize = 60;

fn main() -> ExitCode {
    let args = Args::parse();
    match args.seed {
        Some(seed) => one(seed, &args),
        None => many(&args),
    }
}

/// A seed that failed, with its last events if it would not fail again for sure.
struct Failed {
    seed: u64,
    failure: Failure,
    lines: Vec<String>,
}

fn one(seed: u64, args: &Args) -> ExitCode {
    let trace = if args.trace { Trace::Print } else { Trace::last(LAST_EVENTS) };
    if args.trace {
        println!("{HEADER}");
    }
    let outcome = match run_one(seed, args, &mut Vec::new(), trace) {
        Ok(outcome) => outcome,
        Err(error) => return not_set_up(&error),
    };
    match outcome.failure {
        Some(failure) => {
            let lines = outcome.trace.lines().cloned().collect();
            report_failure(args, &Failed { seed, failure, lines });
            ExitCode::FAILURE
        }
        None => {
            println!("seed {seed}: no failure");
            summary(&outcome.tallies, args.counters);
            ExitCode::SUCCESS
        }
    }
}

fn not_set_up(error: &StackError) -> ExitCode {
    eprintln!("toe-sim: {error}");
    ExitCode::FAILURE
}

fn run_one(seed: u64, args: &Args, memories: &mut Vec<Memory>, trace: Trace) -> Result<Outcome, StackError> {
    if args.datagrams {
        return Ok(apart(Checker::Datagrams, datagrams::run(seed, None), trace));
    }
    if args.messages {
        return Ok(apart(Checker::Messages, messages::run(seed, None), trace));
    }
    if args.files {
        return Ok(apart(Checker::Files, files::run(seed, None), trace));
    }
    let how = Runner { only: args.only, sabotage: None };
    if args.linux { linux::run(seed, how, trace) } else { Ok(run(seed, how, memories, trace)) }
}

/// What a world that is apart from those of streams came to.
fn apart(checker: Checker, outcome: Result<Tallies, String>, trace: Trace) -> Outcome {
    let (tallies, failure) = match outcome {
        Ok(tallies) => (tallies, None),
        Err(what) => (Tallies::default(), Some(Failure { checker, at_us: 0, what })),
    };
    Outcome { failure, tallies, trace }
}

fn replay(seed: u64, args: &Args) -> String {
    use clap::ValueEnum;
    let only = args.only.and_then(|fault| fault.to_possible_value());
    let only = only.map_or(String::new(), |value| format!(" --only {}", value.get_name()));
    let linux = if args.linux { " --linux" } else { "" };
    for (is_chosen, world) in
        [(args.datagrams, "datagrams"), (args.messages, "messages"), (args.files, "files")]
    {
        if is_chosen {
            return format!("toe-sim --{world} --seed {seed}");
        }
    }
    format!("toe-sim --seed {seed}{only}{linux} --trace")
}

fn report_failure(args: &Args, failed: &Failed) {
    let Failed { seed, failure, lines } = failed;
    println!("\nseed {seed} FAILS: {} at {} us: {}", failure.checker.name(), failure.at_us, failure.what);
    println!("faults: {:?}", Swarm::choose(*seed, args.only).faults);
    if !args.trace {
        println!("the last events:\n{HEADER}");
        lines.iter().for_each(|line| println!("{line}"));
    }
    println!("to run it again: {}", replay(*seed, args));
}

fn many(args: &Args) -> ExitCode {
    let jobs = match args.jobs {
        // Real time is mostly waiting.
        0 if args.linux => 8,
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        jobs => jobs,
    };
    let (next, total) = (AtomicU64::new(0), Mutex::new(Tallies::default()));
    let (failures, broken) = (Mutex::new(Vec::new()), Mutex::new(None));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                if let Err(error) = worker(args, &next, &total, &failures) {
                    next.store(args.seeds, Ordering::Relaxed);
                    if let Ok(mut broken) = broken.lock() {
                        *broken = Some(error);
                    }
                }
            });
        }
        scope.spawn(|| progress(args, &next, &failures, start));
    });
    if let Ok(Some(error)) = broken.into_inner() {
        return not_set_up(&error);
    }
    let total = total.into_inner().unwrap_or_default();
    let failures: Vec<Failed> = failures.into_inner().unwrap_or_default();
    let seconds = start.elapsed().as_secs_f64();
    println!("{} seeds in {seconds:.1} s, {:.0} a second", total.seeds, total.seeds as f64 / seconds);
    summary(&total, args.counters);
    for (number, failed) in failures.iter().enumerate() {
        if number == 0 {
            report_failure(args, failed);
        } else {
            let Failed { seed, failure, .. } = failed;
            println!("seed {seed} FAILS: {}: {}", failure.checker.name(), failure.what);
            println!("to run it again: {}", replay(*seed, args));
        }
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn worker(
    args: &Args,
    next: &AtomicU64,
    total: &Mutex<Tallies>,
    failures: &Mutex<Vec<Failed>>,
) -> Result<(), StackError> {
    let mut memories = Vec::new();
    let mut tallies = Tallies::default();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let stopped = !args.keep_going && failures.lock().is_ok_and(|f| !f.is_empty());
        if number >= args.seeds || stopped {
            break;
        }
        let seed = args.first.wrapping_add(number);
        let trace = || if args.linux { Trace::last(LAST_EVENTS) } else { Trace::Off };
        let mut outcome = run_one(seed, args, &mut memories, trace())?;
        tallies.merge(&outcome.tallies);
        let Some(failure) = outcome.failure.take() else { continue };
        println!("seed {seed} FAILS: {}", failure.checker.name());
        // What the failed run left behind is of no use to the next.
        memories.clear();
        if !args.linux {
            outcome = run_one(seed, args, &mut Vec::new(), Trace::last(LAST_EVENTS))?;
            if outcome.failure.as_ref() != Some(&failure) {
                println!("run again it gives something else: {:?}", outcome.failure);
            }
        }
        if let Ok(mut failures) = failures.lock() {
            failures.push(Failed { seed, failure, lines: outcome.trace.lines().cloned().collect() });
        }
    }
    if let Ok(mut total) = total.lock() {
        total.merge(&tallies);
    }
    Ok(())
}

/// A line every few seconds.
fn progress(args: &Args, next: &AtomicU64, failures: &Mutex<Vec<Failed>>, start: Instant) {
    let mut ticks = 0u64;
    loop {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let done = next.load(Ordering::Relaxed).min(args.seeds);
        let failed = failures.lock().map_or(0, |f| f.len());
        if done >= args.seeds || failed > 0 && !args.keep_going {
            return;
        }
        ticks += 1;
        if ticks.is_multiple_of(50) {
            let rate = done as f64 / start.elapsed().as_secs_f64();
            println!("{done} of {} seeds, {rate:.0} a second, {failed} failed", args.seeds);
        }
    }
}

fn summary(total: &Tallies, counters: bool) {
    println!("how often each thing was exercised:");
    for tally in Tally::ALL {
        println!("  {:<40} {:>12}", tally.name(), total.get(*tally));
    }
    if counters {
        println!("the engines' counters:");
        for counter in Counter::ALL {
            println!("  {:<40} {:>12}", counter.name(), total.engine(*counter));
        }
    }
}
