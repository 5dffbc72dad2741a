//! Rows of idle connections: what each takes of memory, and the processor time that all take together. Used by
//! `runner`.

use crate::clients;
use crate::cpus::Cpus;
use crate::error::Result;
use crate::measure::{self, Parties};
use crate::row::{Load, Row};
use crate::runner::percent;
use crate::sample::{Datagrams, Memory, Sample, Stack};
use crate::servers::Server;
use crate::stage::Stage;
use std::time::Duration;
use toe_lab::child::Program;
use toe_lab::process;

/// Opening many connections may take a while.
const OPEN_WITHIN: Duration = Duration::from_secs(60);
/// After the last reply a connection counts as idle: delayed acknowledgements have passed, and the engine has given back
/// the receive memory of flows that were quiet for a second.
const SETTLED: Duration = Duration::from_secs(3);
/// How long the processor time of idleness is watched.
const WINDOW: Duration = Duration::from_secs(2);

/// Memory with some connections.
struct Held {
    memory: Memory,
    slab_kib: f64,
}

/// One run: the growth from one connection to many, so that what programs take anyhow does not count.
pub(crate) fn run(
    stage: &Stage<'_>,
    row: &Row,
    (stack, round): (Stack, u32),
    connections: u32,
    (cpus, neighbours): (&Cpus, &[u32]),
) -> Result<Sample> {
    let server = Server::start(stage, row, stack)?;
    let engine = (stack == Stack::Toe).then(|| stage.engine.pid());
    let parties =
        || Parties { server: server.pids(), engine, neighbours: neighbours.to_vec(), cpus: Some(cpus) };
    let few = {
        let client = open(stage, row, stack, 1)?;
        held(&parties(), &client)?
    };
    let client = open(stage, row, stack, connections)?;
    let many = held(&parties(), &client)?;
    let used = measure::window(&parties(), &client, WINDOW)?;
    let each = |many: f64, few: f64| Some((many - few) / f64::from(connections - 1));
    let sum = |m: &Memory| m.server_kib + m.client_kib + m.engine_kib;
    let memory = Memory {
        connection_kib: each(sum(&many.memory), sum(&few.memory)),
        connection_slab_kib: each(many.slab_kib, few.slab_kib),
        ..many.memory
    };
    let cpu_percent = Some(percent(&used));
    Ok(Sample {
        stack,
        round,
        rate: None,
        datagrams: Datagrams::default(),
        latency_us: None,
        cpu_us: None,
        cpu_percent,
        memory,
        thread_cpu_us: None,
    })
}

/// A client that holds `connections`, each of which has carried a request and its reply.
fn open(stage: &Stage<'_>, row: &Row, stack: Stack, connections: u32) -> Result<Program> {
    let row = Row { load: Load::Idle { connections }, ..row.clone() };
    let mut client = Program::spawn("toe-load idle", &mut clients::toe_load(stage, &row, stack))?;
    client.wait_for_line("\"ready\"", OPEN_WITHIN)?;
    Ok(client)
}

fn held(parties: &Parties<'_>, client: &Program) -> Result<Held> {
    measure::sleep(SETTLED)?;
    let memory = measure::memory(parties, &process::tree_of(client.pid()));
    Ok(Held { memory, slab_kib: measure::slab_kib()? })
}
