//! Measures rows: a fresh engine and a server on each stack, then round by round the client on one stack and the other,
//! turn and turn about. The way in for `toe bench`.

use crate::cpus::Cpus;
use crate::error::{Error, Result};
use crate::measure::{self, Parties, Used};
use crate::neighbours::Neighbours;
use crate::options::{Link, Options, Workload};
use crate::report::{self, Report};
use crate::row::{Load, Row};
use crate::sample::{Cpu, Measured, Sample, Stack};
use crate::servers::Server;
use crate::stage::Stage;
use crate::together::Ended;
use crate::{clients, congestion, idle, machine, plan, targets, together, tools};
use std::time::{Duration, Instant};
use toe_lab::lab::{self, Lab, Side};

/// All names of namespaces and engines begin so.
const PREFIX: &str = "toebench-";
/// Length of each run with `--quick`.
const QUICK_SECONDS: u32 = 1;
/// Beside the runs of a row: engine, servers, their ends.
const ROW_OVERHEAD: Duration = Duration::from_millis(800);
/// Beside a run's time: starting the tool, its warm-up.
const RUN_OVERHEAD: Duration = Duration::from_millis(400);

/// Names of the rows that the options ask for, one a line.
pub fn list(options: &Options) -> String {
    let rows = plan::chosen(options, rustix::process::geteuid().is_root());
    rows.iter().map(|row| row.name() + "\n").collect()
}

/// What a run of `toe bench` gives.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// For the standard output.
    pub text: String,
    /// Rows that were tried in vain.
    pub failed: usize,
}

/// Measures and reports; progress goes to the standard error.
pub fn run(options: &Options) -> Result<Outcome> {
    let is_root = rustix::process::geteuid().is_root();
    let rows = plan::chosen(options, is_root);
    if rows.is_empty() {
        return Err(Error::Options("no row is of that kind; see 'toe bench --list'".to_owned()));
    }
    if !is_root && rows.iter().any(|row| row.link != Link::Local) {
        return Err(toe_lab::Error::NeedsRoot.into());
    }
    let own = Cpus::own()?;
    let cpus = match &options.cpus {
        Some(text) => Cpus::parse(text, &own)?,
        None => own,
    };
    let lab = new_lab(options)?;
    let congestion = congestion::set(&lab, options)?;
    let machine = machine::describe(&cpus, &options.programs, congestion.linux.clone());
    let mut report = Report::new(machine, rounds(options));
    let start = Instant::now();
    let mut ahead: Duration = rows.iter().map(|row| time_of(options, row)).sum();
    let missing = |row: &&Row| tools::missing(row, &options.programs);
    let (side_by_side, alone): (Vec<&Row>, Vec<&Row>) = rows
        .iter()
        .partition(|row| options.together.is_some() && together::may_be(row) && missing(row).is_none());
    let runner = Runner { lab, options, cpus: &cpus, engine_settings: &congestion.engine, is_alone: true };
    for row in alone {
        eprintln!("{:<32} about {} left", row.name(), report::text::minutes(ahead));
        ahead = ahead.saturating_sub(time_of(options, row));
        match missing(&row) {
            Some(why) => report.leave_out(row, why),
            None => take(&mut report, row, runner.measure(row))?,
        }
    }
    drop(runner);
    if let Some(how_many) = options.together {
        let measure = |row: &Row| {
            let lab = new_lab(options)?;
            congestion.give(&lab)?;
            let engine_settings = &congestion.engine;
            Runner { lab, options, cpus: &cpus, engine_settings, is_alone: false }.measure(row)
        };
        let mut take = |Ended { row, outcome, others }: Ended<'_>| {
            ahead = ahead.saturating_sub(time_of(options, row));
            let left = report::text::minutes(ahead / (others.max(1) as u32));
            eprintln!("{:<32} has ended, {others} others run; about {left} left", row.name());
            take(&mut report, row, outcome)
        };
        let seen = together::run(side_by_side, how_many, &measure, &mut || together::look(&cpus), &mut take)?;
        report.together = seen;
    }
    report.rows.sort_by_key(|measured| rows.iter().position(|row| *row == measured.row));
    report.took = start.elapsed();
    report.verdicts = targets::judge(&targets::load()?, &report.rows, &report.failed());
    let text = report::deliver(options, &report)?;
    Ok(Outcome { text, failed: report.failed().len() })
}

/// What became of a row. One that fails does not take the others' figures with it.
fn take(report: &mut Report, row: &Row, outcome: Result<Measured>) -> Result<()> {
    match outcome {
        Ok(measured) => {
            eprint!("{}", report::text::row(&measured));
            report.rows.push(measured);
        }
        Err(error) if error.is_interruption() => return Err(error),
        Err(error) => report.fail(row, &error),
    }
    Ok(())
}

/// A lab for rows of any kind.
fn new_lab(options: &Options) -> Result<Lab> {
    let is_root = rustix::process::geteuid().is_root();
    let programs = options.programs.clone();
    let lab = Lab::new(&lab::Options { prefix: PREFIX, programs, namespaces: is_root })?;
    if is_root {
        for side in [Side::Server, Side::Client] {
            // A new connection at once from each of a kernel's ports, or rows of short connections would measure its
            // TIME_WAIT; and all ports for them. The same for both stacks.
            lab.set_kernel(side, "net/ipv4/tcp_tw_reuse", "1")?;
            lab.set_kernel(side, "net/ipv4/ip_local_port_range", "10000 65535")?;
        }
    }
    Ok(lab)
}

fn rounds(options: &Options) -> u32 {
    if options.quick { 1 } else { options.rounds.max(1) }
}

/// Of a run that has no length of its own.
fn seconds(options: &Options, row: &Row) -> u32 {
    let usual = match row.workload {
        _ if options.quick => QUICK_SECONDS,
        // There are many cells.
        Workload::Rr => 1,
        Workload::File if row.link != Link::Local => 1,
        _ => 2,
    };
    options.seconds.unwrap_or(usual).max(1)
}

/// About how long the row takes.
fn time_of(options: &Options, row: &Row) -> Duration {
    let run = match row.over_slow_wire() {
        Some((transfer, rate_kbit)) => transfer.time_at(rate_kbit),
        None => Duration::from_secs(seconds(options, row).into()),
    };
    ROW_OVERHEAD + (run + RUN_OVERHEAD) * rounds(options) * 2
}

/// What all rows have in common.
struct Runner<'a> {
    lab: Lab,
    options: &'a Options,
    cpus: &'a Cpus,
    /// What engines are started with.
    engine_settings: &'a [String],
    /// No other row runs meanwhile.
    is_alone: bool,
}

impl Runner<'_> {
    fn measure(&self, row: &Row) -> Result<Measured> {
        let mut samples = Vec::new();
        let mut null_ns = None;
        // Ended when the row is done.
        let neighbours = Neighbours::start(row.beside, self.cpus, &self.lab.program("toe-load"))?;
        let beside = neighbours.pids();
        if let Load::Idle { connections } = row.load {
            for (round, stack) in self.turns() {
                // What one round made a program take stays with it, so each has programs of its own.
                let stage = Stage::new(&self.lab, row, self.cpus.placement(row), self.engine_settings)?;
                samples.push(idle::run(&stage, row, (stack, round), connections, (self.cpus, &beside))?);
            }
            return Ok(Measured { row: row.clone(), samples, null_ns });
        }
        let stage = Stage::new(&self.lab, row, self.cpus.placement(row), self.engine_settings)?;
        let linux = Server::start(&stage, row, Stack::Linux)?;
        let toe = Server::start(&stage, row, Stack::Toe)?;
        for (round, stack) in self.turns() {
            let server = match stack {
                Stack::Linux => &linux,
                Stack::Toe => &toe,
            };
            let sample = self.one(&stage, row, (stack, round), server, &beside);
            samples.push(sample.map_err(|error| in_round(error, stack, round))?);
        }
        if let Load::Rr { size, .. } = row.load
            && targets::judges_by_null(&row.name())
        {
            null_ns = Some(clients::null_ns(&stage, size)?);
        }
        Ok(Measured { row: row.clone(), samples, null_ns })
    }

    /// The runs in their order: both stacks each round, who begins changes.
    fn turns(&self) -> impl Iterator<Item = (u32, Stack)> + use<> {
        (1..=rounds(self.options)).flat_map(|round| {
            let mut stacks = Stack::BOTH;
            if round % 2 == 0 {
                stacks.reverse();
            }
            stacks.map(|stack| (round, stack))
        })
    }

    /// One run.
    fn one(
        &self,
        stage: &Stage<'_>,
        row: &Row,
        (stack, round): (Stack, u32),
        server: &Server,
        beside: &[u32],
    ) -> Result<Sample> {
        let engine = (stack == Stack::Toe).then(|| stage.engine.pid());
        let cpus = self.is_alone.then_some(self.cpus);
        let parties = Parties { server: server.pids(), engine, neighbours: beside.to_vec(), cpus };
        let start = || clients::start(stage, row, stack, seconds(self.options, row));
        let seen = match row.over_slow_wire() {
            Some(_) => measure::around(start, &parties)?,
            None => measure::watched(|| measure::watch(start()?, &parties))?,
        };
        let said = clients::parse(row, &seen.finished)?;
        let operations = |used: &Used, rate| match row.over_slow_wire() {
            Some((transfer, _)) => transfer.mib(),
            // Those of the window, at the rate that the tool measured.
            None => rate * used.window.as_secs_f64(),
        };
        let each = |(used, rate): (Used, f64)| used.ns.scaled(1e-3 / operations(&used, rate));
        let mut cpu_us = seen.used.zip(said.rate).map(each);
        if let (Some(cpu), Some(own)) = (&mut cpu_us, said.own_cpu) {
            // Its threads may have come and gone between two looks.
            cpu.total += own.process - cpu.client;
            cpu.client = own.process;
        }
        Ok(Sample {
            stack,
            round,
            rate: said.rate,
            datagrams: said.datagrams,
            latency_us: said.latency,
            cpu_us,
            cpu_percent: seen.used.as_ref().map(percent),
            memory: seen.memory,
            thread_cpu_us: said.own_cpu.map(|own| own.thread),
        })
    }
}

/// An error says in which run it came.
fn in_round(error: Error, stack: Stack, round: u32) -> Error {
    if error.is_interruption() {
        return error;
    }
    Error::failed(format!("on {}, round {round}", stack.title()), error)
}

/// Shares of one processor.
pub(crate) fn percent(used: &Used) -> Cpu {
    used.ns.scaled(100.0 / used.window.as_nanos() as f64)
}
