//! Starts `toed` in the background and waits until it is ready. Used by `toe start` and `toe run`.

use crate::{Failure, locate};
use rustix::io::Errno;
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use toe_abi::discovery;

/// An engine that has just become ready.
#[derive(Debug)]
pub struct Started {
    /// Its process. When its standard input is a pipe, dropping this closes it.
    pub child: Child,
    pub name: String,
    pub socket: PathBuf,
}

/// A program of OpenTOE's with these arguments, with nothing of `toe run` in its surroundings.
pub fn program(name: &str, args: &[impl AsRef<OsStr>]) -> Result<Command, Failure> {
    let Some(path) = locate::program(name) else {
        let remedy = "put it beside 'toe', or into a directory of $PATH";
        return Err(Failure::new(format!("cannot find '{name}'; {remedy}")));
    };
    let mut command = Command::new(path);
    command.args(args).env_remove("LD_PRELOAD").env_remove(discovery::ENGINE_VARIABLE);
    command.stdin(Stdio::null());
    Ok(command)
}

/// Starts an engine that outlives this process, and waits until it is ready or has failed. With `private` it lives
/// only as long as this process holds the pipe, and somebody uses it.
pub fn start(args: &[OsString], private: bool) -> Result<Started, Failure> {
    let mut command = program("toed", args)?;
    command.arg("--detach").stdout(Stdio::piped()).stderr(Stdio::piped());
    if private {
        command.arg("--private").stdin(Stdio::piped());
    }
    let mut child = command.spawn().map_err(|error| Failure::new(cannot_start("'toed'", &error)))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        // An error reads as an end: the engine's own words follow.
        let _ = BufReader::new(out).read_line(&mut line);
    }
    match line.trim_end().strip_prefix("ready ").and_then(|rest| rest.split_once(' ')) {
        Some((name, socket)) => Ok(Started { name: name.to_owned(), socket: PathBuf::from(socket), child }),
        None => Err(why_not(child)),
    }
}

/// That a program cannot be started, and what to do about a limit that it met.
pub fn cannot_start(what: &str, error: &std::io::Error) -> String {
    let remedy = match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => {
            "; this user may have no more processes and threads: raise the limit (ulimit -u, TasksMax) or end some"
        }
        Some(Errno::MFILE) => "; raise the limit of open files (ulimit -n)",
        Some(Errno::NOMEM) => "; raise the limit of memory (ulimit -v, MemoryMax)",
        _ => "",
    };
    format!("{what} cannot be started ({error}){remedy}")
}

/// What an engine that did not become ready had to say.
fn why_not(mut child: Child) -> Failure {
    let mut said = String::new();
    if let Some(mut err) = child.stderr.take() {
        let _ = err.read_to_string(&mut said);
    }
    let status = child.wait();
    let said = said.trim();
    let said = said.strip_prefix("toed: ").unwrap_or(said);
    match status {
        Ok(status) if !said.is_empty() => {
            Failure::with_status(said, status.code().map_or(1, |code| code as u8))
        }
        Err(_) if !said.is_empty() => Failure::new(said),
        Ok(status) if status.signal() == Some(Signal::SYS.as_raw()) => Failure::new(
            "'toed' was ended by a filter of system calls around it; in a unit of systemd's leave SystemCallFilter= out, or add \
             '@mount bpf perf_event_open' to @system-service (the engine has a filter of its own), in a container use its default profile",
        ),
        Ok(status) => {
            Failure::new(format!("'toed' ended before it was ready ({status}); run it by hand to see why"))
        }
        Err(error) => Failure::new(format!("'toed' ended before it was ready ({error})")),
    }
}
