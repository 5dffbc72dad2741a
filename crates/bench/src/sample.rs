//! What one run of one row on one stack gave, and all runs of a row together. Made by `runner`, shown by `report`.

use crate::row::Row;
use crate::stats::Summary;
use serde::Serialize;

/// The stack that a row was measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stack {
    Linux,
    Toe,
}

impl Stack {
    pub(crate) const BOTH: [Stack; 2] = [Stack::Linux, Stack::Toe];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Stack::Linux => "Linux",
            Stack::Toe => "OpenTOE",
        }
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) stack: Stack,
    pub(crate) round: u32,
    /// Operations a second.
    pub(crate) rate: Option<f64>,
    #[serde(flatten)]
    pub(crate) datagrams: Datagrams,
    pub(crate) latency_us: Option<Latency>,
    /// Processor time of one operation.
    pub(crate) cpu_us: Option<Cpu>,
    /// Processor time as a share of one processor, in percent.
    pub(crate) cpu_percent: Option<Cpu>,
    pub(crate) memory: Memory,
    /// Of one operation, that of the thread which asked for it alone; for rows of transfers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thread_cpu_us: Option<f64>,
}

/// Microseconds; what a tool does not tell is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Latency {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p90: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p95: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p999: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<f64>,
}

/// What became of datagrams, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Datagrams {
    /// Of those that were sent, those that did not come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost_percent: Option<f64>,
    /// The rate, of the highest that any lower load had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kept_percent: Option<f64>,
}

/// Processor time by who used it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Cpu {
    pub(crate) server: f64,
    pub(crate) client: f64,
    /// Nothing on Linux, whose stack works in the programs' time and in soft interrupts.
    pub(crate) engine: f64,
    pub(crate) total: f64,
    /// All that the row's processors did, soft interrupts and strangers too: nothing can hide from this one. `None` where other rows ran
    /// on them meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) machine: Option<f64>,
}

/// Memory of the run's processes, in KiB. Pages that several of them share count once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Memory {
    pub(crate) server_kib: f64,
    pub(crate) client_kib: f64,
    pub(crate) engine_kib: f64,
    /// Of one connection, for rows of idle ones: what the processes and the engine grew by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connection_kib: Option<f64>,
    /// Of one connection, for rows of idle ones: what the kernel's slabs grew by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connection_slab_kib: Option<f64>,
}

/// All runs of a row.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) row: Row,
    pub(crate) samples: Vec<Sample>,
    /// Nanoseconds that the handler of `toe-load` takes with no socket at all, for rows that are judged by it.
    pub(crate) null_ns: Option<f64>,
}

/// A figure of a sample that is summed up, plotted or judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    Rate,
    Lost,
    Kept,
    P50,
    P90,
    P95,
    P99,
    P999,
    Max,
    ServerCpu,
    ClientCpu,
    EngineCpu,
    TotalCpu,
    MachineCpu,
    ThreadCpu,
    CpuPercent,
    Memory,
    ConnectionMemory,
    ConnectionSlab,
}

impl Figure {
    /// All, with the names that they have in JSON.
    pub(crate) const ALL: [(&'static str, Figure); 19] = [
        ("rate", Figure::Rate),
        ("lost_percent", Figure::Lost),
        ("kept_percent", Figure::Kept),
        ("p50_us", Figure::P50),
        ("p90_us", Figure::P90),
        ("p95_us", Figure::P95),
        ("p99_us", Figure::P99),
        ("p999_us", Figure::P999),
        ("max_us", Figure::Max),
        ("server_cpu_us", Figure::ServerCpu),
        ("client_cpu_us", Figure::ClientCpu),
        ("engine_cpu_us", Figure::EngineCpu),
        ("total_cpu_us", Figure::TotalCpu),
        ("machine_cpu_us", Figure::MachineCpu),
        ("thread_cpu_us", Figure::ThreadCpu),
        ("cpu_percent", Figure::CpuPercent),
        ("memory_kib", Figure::Memory),
        ("connection_kib", Figure::ConnectionMemory),
        ("connection_slab_kib", Figure::ConnectionSlab),
    ];

    fn of(self, sample: &Sample) -> Option<f64> {
        let latency = sample.latency_us.as_ref();
        let cpu = sample.cpu_us.as_ref();
        let memory = &sample.memory;
        match self {
            Figure::Rate => sample.rate,
            Figure::Lost => sample.datagrams.lost_percent,
            Figure::Kept => sample.datagrams.kept_percent,
            Figure::P50 => latency?.p50,
            Figure::P90 => latency?.p90,
            Figure::P95 => latency?.p95,
            Figure::P99 => latency?.p99,
            Figure::P999 => latency?.p999,
            Figure::Max => latency?.max,
            Figure::ServerCpu => Some(cpu?.server),
            Figure::ClientCpu => Some(cpu?.client),
            Figure::EngineCpu => Some(cpu?.engine),
            Figure::TotalCpu => Some(cpu?.total),
            Figure::MachineCpu => cpu?.machine,
            Figure::ThreadCpu => sample.thread_cpu_us,
            Figure::CpuPercent => Some(sample.cpu_percent.as_ref()?.total),
            Figure::Memory => Some(memory.server_kib + memory.client_kib + memory.engine_kib),
            Figure::ConnectionMemory => memory.connection_kib,
            Figure::ConnectionSlab => memory.connection_slab_kib,
        }
    }
}

impl Measured {
    /// A figure over all rounds of one stack.
    pub(crate) fn summary(&self, stack: Stack, figure: Figure) -> Option<Summary> {
        Summary::of(
            self.samples.iter().filter(|sample| sample.stack == stack).filter_map(|sample| figure.of(sample)),
        )
    }

    /// OpenTOE's median over that of Linux.
    pub(crate) fn ratio(&self, figure: Figure) -> Option<f64> {
        let linux = self.summary(Stack::Linux, figure)?.median;
        let toe = self.summary(Stack::Toe, figure)?.median;
        (linux > 0.0).then(|| toe / linux)
    }
}

impl Cpu {
    /// Each of them times `factor`.
    pub(crate) fn scaled(&self, factor: f64) -> Cpu {
        Cpu {
            server: self.server * factor,
            client: self.client * factor,
            engine: self.engine * factor,
            total: self.total * factor,
            machine: self.machine.map(|machine| machine * factor),
        }
    }
}
