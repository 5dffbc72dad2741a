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
use crate::{clients, congestion, idle, machine, plan, targets, tools};
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
    let congestion = congestion::set(&lab, options)?;
    let (linux, engine_settings) = (congestion.linux, congestion.engine);
    let runner = Runner { lab, options, cpus, engine_settings };
    let mut report = Report::new(machine::describe(&runner.cpus, &options.programs, linux), runner.rounds());
    let start = Instant::now();
    let mut ahead: Duration = rows.iter().map(|row| runner.time_of(row)).sum();
    for row in &rows {
        eprintln!("{:<32} about {} left", row.name(), report::text::minutes(ahead));
        ahead = ahead.saturating_sub(runner.time_of(row));
        if let Some(why) = tools::missing(row, &options.programs) {
            report.leave_out(row, why);
            continue;
        }
        match runner.measure(row) {
            Ok(measured) => {
                eprint!("{}", report::text::row(&measured));
                report.rows.push(measured);
            }
            Err(error) if error.is_interruption() => return Err(error),
            // One row that fails does not take the others' figures with it.
            Err(error) => report.fail(row, &error),
        }
    }
    report.took = start.elapsed();
    report.verdicts = targets::judge(&targets::load()?, &report.rows, &report.failed());
    drop(runner);
    let text = report::deliver(options, &report)?;
    Ok(Outcome { text, failed: report.failed().len() })
}

/// What all rows have in common.
struct Runner<'a> {
    lab: Lab,
    options: &'a Options,
    cpus: Cpus,
    /// What engines are started with.
    engine_settings: Vec<String>,
}

impl Runner<'_> {
    fn rounds(&self) -> u32 {
        if self.options.quick { 1 } else { self.options.rounds.max(1) }
    }

    fn seconds(&self, row: &Row) -> u32 {
        let usual = match row.workload {
            _ if self.options.quick => QUICK_SECONDS,
            // There are many cells.
            Workload::Rr => 1,
            Workload::File if row.link != Link::Local => 1,
            _ => 2,
        };
        self.options.seconds.unwrap_or(usual).max(1)
    }

    /// About how long the row takes.
    fn time_of(&self, row: &Row) -> Duration {
        let run = Duration::from_secs(self.seconds(row).into()) + RUN_OVERHEAD;
        ROW_OVERHEAD + run * self.rounds() * 2
    }

    fn measure(&self, row: &Row) -> Result<Measured> {
        let mut samples = Vec::new();
        let mut null_ns = None;
        // Ended when the row is done.
        let neighbours = Neighbours::start(row.beside, &self.cpus, &self.lab.program("toe-load"))?;
        let beside = neighbours.pids();
        if let Load::Idle { connections } = row.load {
            for (round, stack) in self.turns() {
                // What one round made a program take stays with it, so each has programs of its own.
                let stage = Stage::new(&self.lab, row, self.cpus.placement(row), &self.engine_settings)?;
                samples.push(idle::run(&stage, row, (stack, round), connections, (&self.cpus, &beside))?);
            }
            return Ok(Measured { row: row.clone(), samples, null_ns });
        }
        let stage = Stage::new(&self.lab, row, self.cpus.placement(row), &self.engine_settings)?;
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
        (1..=self.rounds()).flat_map(|round| {
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
        let client = clients::start(stage, row, stack, self.seconds(row))?;
        let engine = (stack == Stack::Toe).then(|| stage.engine.pid());
        let parties =
            Parties { server: server.pids(), engine, neighbours: beside.to_vec(), cpus: &self.cpus };
        let seen = measure::watch(client.program, &parties, client.delay, client.limit)?;
        let said = clients::parse(row, &seen.finished)?;
        let mut cpu_us = seen.used.zip(said.rate).map(|(used, rate)| per_operation(&used, rate));
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

/// Microseconds of each operation: those of the window, at the rate that the tool measured.
fn per_operation(used: &Used, rate: f64) -> Cpu {
    let operations = rate * used.window.as_secs_f64();
    used.ns.scaled(1e-3 / operations)
}

/// Shares of one processor.
pub(crate) fn percent(used: &Used) -> Cpu {
    used.ns.scaled(100.0 / used.window.as_nanos() as f64)
}
