//! Processor time and memory of a run, looked at from outside while it lasts. Used by `runner`.

use crate::clients::Client;
use crate::cpus::Cpus;
use crate::error::{Error, Result};
use crate::sample::{Cpu, Memory};
use procfs::process::Process;
use procfs::{Current, CurrentSI};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use toe_lab::child::{Finished, Program};
use toe_lab::{process, wait};

/// How often the clocks are read while a run lasts; the last reading ends the window.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs that are tried for one that is seen long enough.
const RUNS_AT_MOST: u32 = 5;

/// From the start of a client to where its memory is looked at.
const MEMORY_SETTLED: Duration = Duration::from_millis(100);

/// In the place of a thread's number: the children that a process has waited for.
const CHILDREN: i32 = 0;

/// Who is measured beside the client.
#[derive(Debug)]
pub(crate) struct Parties<'a> {
    pub(crate) server: Vec<u32>,
    /// None on Linux.
    pub(crate) engine: Option<u32>,
    /// Who only shares the processors: counts as nobody's.
    pub(crate) neighbours: Vec<u32>,
    /// The processors that the row has for itself; `None` where other rows run on them, too.
    pub(crate) cpus: Option<&'a Cpus>,
}

/// Processor time that was used within a window of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) window: Duration,
    /// Nanoseconds.
    pub(crate) ns: Cpu,
}

/// What was seen of a run.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) finished: Finished,
    /// `None` when the run was too short for a window.
    pub(crate) used: Option<Used>,
    pub(crate) memory: Memory,
}

/// Waits for the client's end, and looks on. The window begins when all is under way.
pub(crate) fn watch(client: Client, parties: &Parties<'_>) -> Result<Seen> {
    let Client { program: mut client, delay, limit } = client;
    sleep(delay)?;
    let client_pids = process::tree_of(client.pid());
    let memory = memory(parties, &client_pids);
    let mut clocks = Clocks::default();
    let first = clocks.read(parties, &client_pids)?;
    let mut last = first;
    let start = Instant::now();
    while client.is_running() && start.elapsed() < limit {
        sleep(LOOK_EVERY)?;
        let now = clocks.read(parties, &client_pids)?;
        // One that was read after the end, or while it ended, would count idle time.
        if client.is_running() {
            last = now;
        }
    }
    let finished = client.wait(limit)?.success()?;
    let window = last.at - first.at;
    let used = (!window.is_zero()).then(|| Used { window, ns: last.since(&first) });
    Ok(Seen { finished, used, memory })
}

/// The first run that was seen long enough. On a busy machine one can be over before its clocks are read twice, and would have no processor time.
pub(crate) fn watched(mut run: impl FnMut() -> Result<Seen>) -> Result<Seen> {
    for _ in 0..RUNS_AT_MOST {
        let seen = run()?;
        if seen.used.is_some() {
            return Ok(seen);
        }
    }
    let cause = "each was over before its processor time could be read twice: the machine is too busy, or '--seconds' too few";
    Err(Error::failed(format!("{RUNS_AT_MOST} runs"), cause))
}

/// Runs a client that makes a single transfer, and counts what server and engine use from before its start until its end; what the client itself
/// uses it has to tell, as it may be over before one can look.
pub(crate) fn around(start: impl FnOnce() -> Result<Client>, parties: &Parties<'_>) -> Result<Seen> {
    let mut clocks = Clocks::default();
    let first = clocks.read(parties, &[])?;
    let client = start()?;
    sleep(MEMORY_SETTLED)?;
    let memory = memory(parties, &process::tree_of(client.program.pid()));
    let finished = client.program.wait(client.limit)?.success()?;
    let last = clocks.read(parties, &[])?;
    Ok(Seen { finished, used: Some(Used { window: last.at - first.at, ns: last.since(&first) }), memory })
}

/// Processor time that everyone uses within `window`, while the caller keeps a load as it is.
pub(crate) fn window(parties: &Parties<'_>, client: &Program, window: Duration) -> Result<Used> {
    let client_pids = process::tree_of(client.pid());
    let mut clocks = Clocks::default();
    let first = clocks.read(parties, &client_pids)?;
    sleep(window)?;
    let last = clocks.read(parties, &client_pids)?;
    Ok(Used { window: last.at - first.at, ns: last.since(&first) })
}

/// How busy the processors are, in percent of them all.
pub(crate) fn busy_percent(cpus: &Cpus, niced: Niced, window: Duration) -> Result<f64> {
    let (first, start) = (machine_ns(cpus, niced)?, Instant::now());
    sleep(window)?;
    let busy = machine_ns(cpus, niced)? - first;
    Ok(busy / (start.elapsed().as_nanos() as f64 * cpus.count() as f64) * 100.0)
}

/// Memory of everyone now. `Pss` shares a page among those that map it, so the sum has each page once.
pub(crate) fn memory(parties: &Parties<'_>, client: &[u32]) -> Memory {
    let sum = |pids: &[u32]| pids.iter().map(|pid| pss_kib(*pid)).sum();
    Memory {
        server_kib: sum(&parties.server),
        client_kib: sum(client),
        engine_kib: parties.engine.map_or(0.0, pss_kib),
        connection_kib: None,
        connection_slab_kib: None,
    }
}

/// What the kernel's slabs take, in KiB: sockets and what hangs on them.
pub(crate) fn slab_kib() -> Result<f64> {
    let memory = procfs::Meminfo::current().map_err(|error| Error::failed("/proc/meminfo", error))?;
    Ok(memory.slab as f64 / 1024.0)
}

/// Sleeps in small steps, so that an interruption ends it.
pub(crate) fn sleep(duration: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        wait::check_interrupted()?;
        let left = duration.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}

/// A reading of all clocks.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    ns: Cpu,
}

impl Reading {
    fn since(&self, first: &Reading) -> Cpu {
        let (now, then) = (&self.ns, &first.ns);
        Cpu {
            server: now.server - then.server,
            client: now.client - then.client,
            engine: now.engine - then.engine,
            total: now.total - then.total,
            machine: now.machine.zip(then.machine).map(|(now, then)| now - then),
        }
    }
}

/// The processor time of threads, by process and thread. The scheduler's own figure in nanoseconds: a window of a
/// second is too short for ticks of 10 ms. A thread that ended keeps its last one.
#[derive(Debug, Default)]
struct Clocks(HashMap<(u32, i32), u64>);

impl Clocks {
    fn read(&mut self, parties: &Parties<'_>, client: &[u32]) -> Result<Reading> {
        let engine = parties.engine.as_slice();
        let (server, client, engine) =
            (self.processes(&parties.server), self.processes(client), self.processes(engine));
        let machine = match parties.cpus {
            Some(cpus) => Some(machine_ns(cpus, Niced::Counts)? - self.processes(&parties.neighbours)),
            None => None,
        };
        let ns = Cpu { server, client, engine, total: server + client + engine, machine };
        Ok(Reading { at: Instant::now(), ns })
    }

    fn processes(&mut self, pids: &[u32]) -> f64 {
        pids.iter().for_each(|pid| self.process(*pid));
        let of_these = self.0.iter().filter(|((pid, _), _)| pids.contains(pid));
        of_these.map(|(_, ns)| *ns as f64).sum()
    }

    fn process(&mut self, pid: u32) {
        let Ok(process) = Process::new(pid.cast_signed()) else { return };
        for task in process.tasks().into_iter().flatten().flatten() {
            if let Ok(times) = task.schedstat() {
                self.0.insert((pid, task.tid), times.sum_exec_runtime);
            }
        }
        // A server may have had a process for each connection: those are gone before they can be looked at.
        if let Ok(stat) = process.stat() {
            let ticks = stat.cutime.saturating_add(stat.cstime).max(0).cast_unsigned();
            self.0.insert((pid, CHILDREN), ticks * 1_000_000_000 / procfs::ticks_per_second());
        }
    }
}

/// Whether the work of programs that give way to all others counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Niced {
    Counts,
    CountsAsIdle,
}

/// Nanoseconds in which the processors were not idle.
fn machine_ns(cpus: &Cpus, niced: Niced) -> Result<f64> {
    let stat = procfs::KernelStats::current().map_err(|error| Error::failed("/proc/stat", error))?;
    let busy = stat.cpu_time.iter().enumerate().filter(|(cpu, _)| cpus.contains(*cpu)).map(|(_, t)| {
        let nice = if niced == Niced::Counts { t.nice } else { 0 };
        t.user + nice + t.system + t.irq.unwrap_or_default() + t.softirq.unwrap_or_default()
    });
    Ok(busy.sum::<u64>() as f64 * 1e9 / procfs::ticks_per_second() as f64)
}

fn pss_kib(pid: u32) -> f64 {
    let rollup = Process::new(pid.cast_signed()).and_then(|process| process.smaps_rollup());
    let maps = rollup.map(|rollup| rollup.memory_map_rollup).ok();
    let pss = maps.and_then(|maps| maps.into_iter().find_map(|map| map.extension.map.get("Pss").copied()));
    pss.unwrap_or_default() as f64 / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const LIMIT: Duration = Duration::from_secs(60);

    /// What is seen of a client that ended before anybody looked.
    fn too_late() -> Result<Seen> {
        let mut program = Program::spawn("true", &mut Command::new("true"))?;
        while program.is_running() {
            std::thread::yield_now();
        }
        let parties = Parties { server: Vec::new(), engine: None, neighbours: Vec::new(), cpus: None };
        watch(Client { program, delay: Duration::ZERO, limit: LIMIT }, &parties)
    }

    #[test]
    fn a_run_that_was_over_too_soon_is_made_again() {
        let mut runs = 0;
        let seen = watched(|| {
            runs += 1;
            let used = (runs == 3).then(|| Used { window: LIMIT, ns: Cpu::default() });
            Ok(Seen { used, ..too_late()? })
        });
        assert_eq!((seen.expect("the third").used.map(|used| used.window), runs), (Some(LIMIT), 3));
    }

    #[test]
    fn runs_that_are_all_over_too_soon_are_an_error_with_a_remedy() {
        assert!(too_late().expect("a run").used.is_none());
        let error = watched(too_late).expect_err("never seen").to_string();
        assert!(error.contains("--seconds"), "{error}");
    }
}
