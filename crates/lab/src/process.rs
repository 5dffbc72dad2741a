//! Looks into `/proc`, and the end of processes by their number. Used by the lab and by those who measure in it.

use crate::{Error, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;

/// The children of a process.
pub fn children_of(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// A process and all that descends from it.
pub fn tree_of(pid: u32) -> Vec<u32> {
    let mut tree = vec![pid];
    let mut next = 0;
    while let Some(pid) = tree.get(next) {
        tree.extend(children_of(*pid));
        next += 1;
    }
    tree
}

/// A process's command line; empty when it is gone.
pub fn command_line(pid: u32) -> String {
    let raw = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&raw).replace('\0', " ")
}

/// The short name of a process.
pub fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// Where each thread of a process and of all that descends from it is: a line each with its number, its name and what
/// it waits for in the kernel. For whoever has to find out why a program does not end.
pub fn threads_of(pid: u32) -> String {
    let mut lines = String::new();
    for pid in tree_of(pid) {
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let path = task.path();
            let read = |name| fs::read_to_string(path.join(name)).unwrap_or_default();
            let (name, waits_for, call) = (read("comm"), read("wchan"), read("syscall"));
            let (name, waits_for, call) = (name.trim(), waits_for.trim(), call.trim());
            lines += &format!("{pid}/{} {name}: {waits_for}, call {call}\n", task.file_name().display());
        }
    }
    lines
}

/// The kernel's stack, as process `pid` sees it, has a listener on TCP port `port` over IPv4.
pub fn listens_on_kernel(pid: u32, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let wanted = format!(":{port:04X}");
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&wanted)) && words.nth(1) == Some(LISTEN)
    })
}

/// A process of this number exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Sends a signal to a process which this one started, or whose parent it started.
pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = number.ok_or_else(|| Error::failed("a signal", format!("{pid} is no process number")))?;
    kill_process(number, signal).map_err(|error| Error::failed(format!("a signal to process {pid}"), error))
}

/// Ends the process `pid` as `kill -9` does. Only for processes that the caller started, or whose parent it started.
pub fn kill_hard(pid: u32) -> Result<()> {
    signal(pid, Signal::KILL)
}

/// [`kill_hard`] for cleaning up: a process that is gone already is fine.
pub fn end(pid: u32) {
    if is_alive(pid) {
        // It may have ended between the two.
        let _ = kill_hard(pid);
    }
}
