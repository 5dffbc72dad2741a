//! An engine under test: started, asked and ended with the `toe` command, as a user would.

use crate::child::{self, Finished};
use crate::lab::{ENGINE_ADDR, ENGINE_LINK, Lab, PEER_ADDR, Side, TAP_ENGINE_ADDR, TAP_LINK};
use crate::wait::{self, SOON};
use crate::{bins, tools};
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use toe_abi::report::{SocketReport, SocketsReport, StatusReport};

/// A running engine; ended when this is dropped.
#[derive(Debug)]
pub struct Engine {
    /// The `toe` command.
    toe: PathBuf,
    name: String,
    side: Side,
    port: Option<String>,
    addr: String,
    log: PathBuf,
    pid: u32,
}

impl Engine {
    /// An engine with the `local` port only.
    pub fn local(lab: &Lab) -> Engine {
        Engine::start(lab, Side::Server, None, ENGINE_ADDR)
    }

    /// An engine on one end of the lab's link. `faults` is the part of the port that asks for them, such as
    /// `?drop=1%`, or nothing.
    pub fn on_link(lab: &Lab, side: Side, faults: &str) -> Engine {
        let addr = match side {
            Side::Server => ENGINE_ADDR,
            Side::Client => {
                lab.free_peer_addr();
                PEER_ADDR
            }
        };
        Engine::start(lab, side, Some(format!("packet:{ENGINE_LINK}{faults}")), addr)
    }

    /// An engine on a TAP interface of its own in the server's namespace, whose kernel is its peer there.
    pub fn on_tap(lab: &Lab) -> Engine {
        let port = format!("tap:{TAP_LINK}");
        let engine = Engine::start(lab, Side::Server, Some(port), TAP_ENGINE_ADDR);
        lab.give_tap_its_address();
        engine
    }

    fn start(lab: &Lab, side: Side, port: Option<String>, addr: &str) -> Engine {
        let name = match side {
            Side::Server => lab.name().to_owned(),
            Side::Client => format!("{}-peer", lab.name()),
        };
        let log = lab.dir().join(format!("{name}.log"));
        let mut engine =
            Engine { toe: bins::path("toe"), name, side, port, addr: addr.to_owned(), log, pid: 0 };
        engine.start_again(lab);
        engine
    }

    /// `toe start` with this engine's name, after it was killed.
    pub fn start_again(&mut self, lab: &Lab) {
        // The engine goes on after `toe start` has ended, so what they write goes to a file, not to a pipe.
        let log = File::options().create(true).append(true).open(&self.log).expect("a log file");
        let mut command = lab.command(self.side, &self.toe);
        command.args(["start", "--name", &self.name, "--log-file"]).arg(&self.log);
        if let Some(port) = &self.port {
            command.args(["--port", port, "--addr", &format!("{}/24", self.addr)]);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log file")).stderr(log);
        let status = command.status().unwrap_or_else(|e| panic!("toe start: {e}"));
        assert!(status.success(), "toe start: {status}\n{}", self.log());
        let (status, _) =
            wait::until("the engine answers", SOON, || self.try_report::<StatusReport>("status"));
        self.pid = status.pid;
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The engine's address on its link.
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// `program` on this engine: `toe run --name … -- program`.
    pub fn run(&self, lab: &Lab, program: &str) -> Command {
        let mut command = lab.command(self.side, &self.toe);
        command.args(["run", "--name", &self.name, "--", program]);
        command
    }

    /// The reply to `toe status`.
    pub fn status(&self) -> StatusReport {
        self.try_report("status").unwrap_or_else(|| panic!("toe status --name {} fails", self.name))
    }

    /// The reply to `toe ss`.
    pub fn sockets(&self) -> Vec<SocketReport> {
        let report: Option<SocketsReport> = self.try_report("ss");
        report.unwrap_or_else(|| panic!("toe ss --name {} fails", self.name)).sockets
    }

    /// Flows that some program holds.
    pub fn held_flows(&self) -> Vec<SocketReport> {
        self.sockets().into_iter().filter(|s| s.state != "LISTEN" && !s.users.is_empty()).collect()
    }

    /// Waits until a program listens on `port` here.
    pub fn wait_for_listener(&self, port: u16) -> SocketReport {
        let suffix = format!(":{port}");
        let look = || self.sockets().into_iter().find(|s| s.state == "LISTEN" && s.local.ends_with(&suffix));
        wait::until(&format!("a listener on port {port} of the engine"), SOON, look).0
    }

    /// Waits until no program holds a flow and all receive memory is back; gives the time it took.
    pub fn wait_until_idle(&self, limit: Duration) -> Duration {
        wait::until_true("flows gone and memory back", limit, || {
            self.held_flows().is_empty() && self.status().receive_memory_used == 0
        })
    }

    /// `toe why PID FD`.
    pub fn why(&self, lab: &Lab, pid: u32, fd: u32) -> Finished {
        let mut command = lab.command(self.side, &self.toe);
        command.args(["why", &pid.to_string(), &fd.to_string()]);
        child::run("toe why", &mut command, SOON)
    }

    /// `kill -9` of the engine.
    pub fn kill_hard(&self) {
        child::kill_hard(self.pid);
    }

    /// What the engine logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn try_report<T: DeserializeOwned>(&self, what: &str) -> Option<T> {
        let mut command = Command::new(&self.toe);
        let output =
            command.args([what, "--name", &self.name, "--json"]).stdin(Stdio::null()).output().ok()?;
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("the report is JSON"))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- log of engine {}:\n{}----", self.name, tools::tail(&self.log(), 60));
        }
        let stop = Command::new(&self.toe).args(["stop", "--name", &self.name]).output();
        if !stop.is_ok_and(|output| output.status.success()) {
            child::end(self.pid);
        }
    }
}
