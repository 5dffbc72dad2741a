//! What the figures were measured on. Made by `runner`, shown by `report`.

use crate::cpus::Cpus;
use crate::measure::{self, Niced};
use crate::tools;
use procfs::Current;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    /// Those that the measured programs had.
    pub(crate) cpus_used: String,
    /// Congestion control of Linux's sockets.
    pub(crate) congestion: Option<String>,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    pub(crate) system: String,
    pub(crate) opentoe: String,
    /// When it began, in UTC.
    pub(crate) date: String,
    /// Of the source tree in which the programs lie, if they do.
    pub(crate) commit: Option<String>,
    /// How much the processors had to do before anything was started, in percent.
    pub(crate) busy_before_percent: Option<f64>,
    /// Versions of the programs that are there.
    pub(crate) tools: BTreeMap<String, String>,
}

/// How long the machine is watched before anything is started.
const BUSY_WINDOW: Duration = Duration::from_millis(500);
/// More than this disturbs the figures.
const BUSY_PERCENT_MAX: f64 = 5.0;

impl Machine {
    pub(crate) fn congestion(&self) -> &str {
        self.congestion.as_deref().unwrap_or("a congestion control that could not be told")
    }

    /// A warning when others were at work.
    pub(crate) fn busy_note(&self) -> Option<String> {
        let busy = self.busy_before_percent.filter(|busy| *busy > BUSY_PERCENT_MAX)?;
        Some(format!(
            "other programs had the processors busy to {busy:.0} % before this began: figures are noisy"
        ))
    }
}

/// Looks at this machine. What it does not tell is left empty: a figure is not worth less for it.
pub(crate) fn describe(cpus: &Cpus, programs: &Path, congestion: Option<String>) -> Machine {
    let info = procfs::CpuInfo::current().ok();
    let cpu = info.as_ref().and_then(|info| info.model_name(0).map(str::to_owned));
    let memory = procfs::Meminfo::current().map(|memory| memory.mem_total >> 20);
    let uname = rustix::system::uname();
    Machine {
        cpu: cpu.unwrap_or_default(),
        cpus: info.map_or(0, |info| info.num_cores()),
        cpus_used: cpus.list(),
        congestion,
        memory_mib: memory.unwrap_or_default(),
        kernel: uname.release().to_string_lossy().into_owned(),
        system: system(),
        opentoe: env!("CARGO_PKG_VERSION").to_owned(),
        date: said("date", &["-u", "+%Y-%m-%d %H:%M"]).unwrap_or_default(),
        commit: commit(programs),
        busy_before_percent: measure::busy_percent(cpus, Niced::Counts, BUSY_WINDOW).ok(),
        tools: versions(),
    }
}

fn commit(programs: &Path) -> Option<String> {
    let dir = programs.to_string_lossy();
    said("git", &["-C", &dir, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"])
}

fn system() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or_default().trim_matches('"').to_owned()
}

fn versions() -> BTreeMap<String, String> {
    let asked = [
        (tools::NGINX, "-v"),
        (tools::WRK, "-v"),
        (tools::REDIS, "--version"),
        (tools::MEMCACHED, "--version"),
        (tools::MEMCASLAP, "--version"),
    ];
    let found = asked.into_iter().filter_map(|(tool, flag)| {
        let path = tool.path().ok()?;
        let line = said(&path.to_string_lossy(), &[flag])?;
        Some((tool.program.to_owned(), line.chars().take(60).collect()))
    });
    found.collect()
}

/// The first line that a command says, on either output.
fn said(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().ok()?;
    let all = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&all);
    // wrk says its version and then fails for want of an address.
    let line = text.lines().find(|line| !line.trim().is_empty())?.trim().to_owned();
    (output.status.success() || program.ends_with("wrk")).then_some(line)
}
