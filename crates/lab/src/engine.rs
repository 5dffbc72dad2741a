//! An engine in a lab: started, asked and ended with the `toe` command, as a user would.

use crate::lab::{Lab, Side, Spot};
use crate::wait::{self, SOON};
use crate::{Error, Result, process};
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use toe_abi::discovery;
use toe_abi::report::{SocketReport, SocketsReport, StatusReport};

/// Lines of an engine's log that explain why it did not start.
const LOG_LINES: usize = 5;

/// What an engine is started with. Everything else is as `toe start` has it.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    pub spot: Spot<'a>,
    /// Its `--port`, such as `packet:toe0`, and its address there; only `local` without.
    pub port: Option<(String, &'a str)>,
    /// Its address of IPv6 there.
    pub addr6: Option<&'a str>,
    /// What its name ends with, so that several have different ones.
    pub suffix: &'a str,
    /// More that `toe start` is given.
    pub settings: &'a [&'a str],
}

/// A running engine; ended when this is dropped.
#[derive(Debug)]
pub struct Engine {
    /// The words that run the `toe` command on the engine's side: to root elsewhere it shows nothing, and does not end.
    toe: Vec<PathBuf>,
    name: String,
    side: Side,
    cpus: Option<String>,
    port: Option<(String, String)>,
    addr6: Option<String>,
    settings: Vec<String>,
    log: PathBuf,
    pid: u32,
}

impl Engine {
    /// Starts an engine named after the lab, and waits until it answers.
    pub fn start(lab: &Lab, options: &Options<'_>) -> Result<Engine> {
        let name = match options.spot.side {
            Side::Server => format!("{}{}", lab.name(), options.suffix),
            Side::Client => format!("{}-peer{}", lab.name(), options.suffix),
        };
        let mut engine = Engine {
            toe: lab.words(options.spot.side.into(), &lab.program("toe")),
            log: lab.dir().join(format!("{name}.log")),
            name,
            side: options.spot.side,
            cpus: options.spot.cpus.map(str::to_owned),
            port: options.port.as_ref().map(|(port, addr)| (port.clone(), (*addr).to_owned())),
            addr6: options.addr6.map(str::to_owned),
            settings: options.settings.iter().map(|&setting| setting.to_owned()).collect(),
            pid: 0,
        };
        engine.start_again(lab)?;
        Ok(engine)
    }

    /// `toe start` with this engine's name, after it was killed.
    pub fn start_again(&mut self, lab: &Lab) -> Result<()> {
        // The engine goes on after `toe start` has ended, so what they write goes to a file, not to a pipe.
        let failed = |error| Error::failed(format!("the log {}", self.log.display()), error);
        let log = File::options().create(true).append(true).open(&self.log).map_err(failed)?;
        let spot = Spot { side: self.side, cpus: self.cpus.as_deref() };
        let mut command = lab.command(spot, lab.program("toe"));
        command.args(["start", "--name", &self.name, "--log-file"]).arg(&self.log).args(&self.settings);
        // A call that is not on its list ends the engine, and so the test.
        command.args(["--seccomp", "strict"]);
        if let Some((port, addr)) = &self.port {
            command.args(["--port", port]);
            // On a shared link the address is the kernel's, which has it already.
            if !port.starts_with("xdp:") {
                command.args(["--addr", &format!("{addr}/24")]);
            }
            if let Some(addr6) = &self.addr6 {
                command.args(["--addr", &format!("{addr6}/64")]);
            }
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        let status = command.status().map_err(|error| Error::cannot_run("toe start", error))?;
        if !status.success() {
            return Err(Error::failed("toe start", format!("{status}\n{}", tail(&self.log(), LOG_LINES))));
        }
        let asked = wait::until("the engine answers", SOON, || self.try_report::<StatusReport>("status"));
        self.pid = asked?.0.pid;
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The engine's address on its link; without one, that of `local`.
    pub fn addr(&self) -> &str {
        self.port.as_ref().map_or("127.0.0.1", |(_, addr)| addr)
    }

    /// `program` on this engine: `toe run --name … -- program`.
    pub fn run(&self, lab: &Lab, cpus: Option<&str>, program: impl AsRef<Path>) -> Command {
        let mut command = lab.command(Spot { side: self.side, cpus }, lab.program("toe"));
        command.args(["run", "--name", &self.name, "--"]).arg(program.as_ref());
        command
    }

    /// `program`, which is written for OpenTOE, with this engine.
    pub fn native(&self, lab: &Lab, cpus: Option<&str>, program: impl AsRef<Path>) -> Command {
        let mut command = lab.command(Spot { side: self.side, cpus }, program);
        let xdg = std::env::var("XDG_RUNTIME_DIR").ok();
        let dirs = discovery::search_dirs(rustix::process::geteuid().as_raw(), xdg.as_deref());
        let mut sockets = dirs.iter().map(|dir| discovery::socket_path(dir, &self.name));
        if let Some(socket) = sockets.find(|socket| Path::new(socket).exists()) {
            command.env(discovery::ENGINE_VARIABLE, socket);
        }
        // It may point at another build of the library.
        command.env_remove("LD_LIBRARY_PATH");
        command
    }

    /// The `toe` command with `args`, on this engine's side.
    pub fn toe(&self, lab: &Lab, args: &[&str]) -> Command {
        let mut command = lab.command(self.side, lab.program("toe"));
        command.args(args);
        command
    }

    /// The reply to `toe status`.
    pub fn status(&self) -> Result<StatusReport> {
        self.report("status")
    }

    /// The reply to `toe ss`.
    pub fn sockets(&self) -> Result<Vec<SocketReport>> {
        Ok(self.report::<SocketsReport>("ss")?.sockets)
    }

    /// Flows that some program holds.
    pub fn held_flows(&self) -> Result<Vec<SocketReport>> {
        let sockets = self.sockets()?;
        let is_held = |s: &SocketReport| s.udp.is_none() && s.state != "LISTEN" && !s.users.is_empty();
        Ok(sockets.into_iter().filter(is_held).collect())
    }

    /// Waits until a program listens on `port` here.
    pub fn wait_for_listener(&self, port: u16) -> Result<SocketReport> {
        let suffix = format!(":{port}");
        let look = || {
            let sockets = self.sockets()?;
            Ok(sockets.into_iter().find(|s| s.state == "LISTEN" && s.local.ends_with(&suffix)))
        };
        Ok(wait::until(&format!("a listener on port {port} of the engine"), SOON, look)?.0)
    }

    /// Waits until no program holds a flow and all receive memory is back; gives the time it took.
    pub fn wait_until_idle(&self, limit: Duration) -> Result<Duration> {
        let look = || {
            let idle = self.held_flows()?.is_empty() && self.status()?.receive_memory_used == 0;
            Ok(idle.then_some(()))
        };
        Ok(wait::until("flows gone and memory back", limit, look)?.1)
    }

    /// `kill -9` of the engine.
    pub fn kill_hard(&self) -> Result<()> {
        process::kill_hard(self.pid)
    }

    /// What the engine logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn report<T: DeserializeOwned>(&self, what: &str) -> Result<T> {
        let answer = self.try_report(what)?;
        answer.ok_or_else(|| Error::failed(format!("toe {what} --name {}", self.name), "no answer"))
    }

    fn ask(&self, what: &str) -> Command {
        let mut command = Command::new(&self.toe[0]);
        command.args(&self.toe[1..]).args([what, "--name", &self.name]);
        command
    }

    /// `None` while the engine does not answer.
    fn try_report<T: DeserializeOwned>(&self, what: &str) -> Result<Option<T>> {
        let mut command = self.ask(what);
        command.arg("--json").stdin(Stdio::null());
        let output = command.output().map_err(|error| Error::cannot_run("toe", error))?;
        if !output.status.success() {
            return Ok(None);
        }
        let report = serde_json::from_slice(&output.stdout);
        Ok(Some(report.map_err(|error| Error::failed(format!("the report of toe {what}"), error))?))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- log of engine {}:\n{}----", self.name, tail(&self.log(), 60));
        }
        let stop = self.ask("stop").output();
        if stop.is_ok_and(|output| output.status.success()) || !process::is_alive(self.pid) {
            return;
        }
        // An engine that has to be killed is a fault, and nothing else would tell of it.
        eprintln!("engine {} (process {}) does not end when asked; killed", self.name, self.pid);
        process::end(self.pid);
        // Its name is free when it is gone.
        wait::briefly(SOON, || !process::is_alive(self.pid));
    }
}

/// The last `lines` lines of a text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let mut out = all[all.len().saturating_sub(lines)..].join("\n");
    out.push('\n');
    out
}
