//! A network namespace for one thread. It has no name and goes with the thread and its descriptors, however those end, so
//! that nothing is ever left behind. Used by the runners of this crate and by the simulator against Linux.

use crate::stack::StackError;
use nix::sched::{CloneFlags, unshare};
use std::io::Write;
use std::process::{Command, Stdio};

/// Moves this thread into a new namespace, which has loopback only.
pub fn enter_alone() -> Result<(), StackError> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|error| StackError::new("making a network namespace (this needs root)", error))?;
    sysctl("ipv6/conf/default/disable_ipv6", "1")?;
    ip("link set lo up\n")
}

/// What `ip -batch` does with these lines, in this thread's namespace.
pub fn ip(batch: &str) -> Result<(), StackError> {
    let failed = |error| StackError::new("running ip -batch", error);
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(stdin) = child.stdin.as_mut() {
        stdin.write_all(batch.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        Ok(())
    } else {
        Err(StackError::new("ip -batch", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// Sets `net/NAME` of this thread's namespace.
pub fn sysctl(name: &str, value: &str) -> Result<(), StackError> {
    std::fs::write(format!("/proc/sys/net/{name}"), value)
        .map_err(|error| StackError::new(&format!("setting net/{name} to {value}"), error))
}
