//! What runs beside the programs that are measured, on the same processors, because servers share their machine. Used by
//! `runner`.

use crate::cpus::Cpus;
use crate::error::Result;
use crate::options::Neighbour;
use std::path::Path;
use std::process::Command;
use toe_lab::child::Program;

/// Programs that run until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Neighbours(Vec<Program>);

impl Neighbours {
    /// Starts one for each processor. The scheduler places them, as it places everybody.
    pub(crate) fn start(kind: Option<Neighbour>, cpus: &Cpus, toe_load: &Path) -> Result<Neighbours> {
        let Some(kind) = kind else { return Ok(Neighbours::default()) };
        let mode = match kind {
            Neighbour::Loops | Neighbour::Nice => "spin",
            Neighbour::Memory => "eat",
        };
        let start = |_| {
            let mut command = Command::new("taskset");
            command.args(["-c", &cpus.list()]);
            if kind == Neighbour::Nice {
                command.args(["nice", "-n", "19"]);
            }
            command.arg(toe_load).arg(mode);
            Ok(Program::spawn(mode, &mut command)?)
        };
        (0..cpus.count()).map(start).collect::<Result<Vec<_>>>().map(Neighbours)
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.0.iter().map(Program::pid).collect()
    }
}
