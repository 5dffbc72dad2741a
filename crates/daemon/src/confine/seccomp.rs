//! Filters of system calls, made from the table in [`super::calls`]: one for the process, which every thread inherits, and on
//! top of it a narrower one for the engine's own thread.
//!
//! A call that is always allowed costs no run of the filter: since Linux 5.11 the kernel keeps those in a bitmap. So the
//! filters look at the arguments of few calls ([`super::arguments`]), none of which a round makes.

use super::arguments;
use super::calls::{CALLS, Thread};
use crate::config::SeccompMode;
use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompFilter, SeccompRule, apply_filter, apply_filter_all_threads,
};
use std::collections::BTreeMap;

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error(transparent)]
    Filter(#[from] seccompiler::Error),
    #[error(transparent)]
    Backend(#[from] seccompiler::BackendError),
}

/// For all threads of the process, now and later.
pub(super) fn filter_process(mode: SeccompMode) -> Result<(), SeccompError> {
    apply_filter_all_threads(&program(mode, &[Thread::Any, Thread::Helper])?)?;
    // What it names is not there, in every mode: the C library then makes threads by clone, whose flags can be looked at.
    apply_filter_all_threads(&refusing(
        [(libc::SYS_clone3, Vec::new())].into(),
        refusal(SeccompMode::Errno),
    )?)?;
    Ok(apply_filter_all_threads(&refusing(arguments::refused()?, refusal(mode))?)?)
}

/// For the calling thread, and those that it makes.
pub(super) fn filter_engine_thread(mode: SeccompMode) -> Result<(), SeccompError> {
    Ok(apply_filter(&program(mode, &[Thread::Any])?)?)
}

fn program(mode: SeccompMode, threads: &[Thread]) -> Result<BpfProgram, SeccompError> {
    let calls = CALLS.iter().filter(|call| threads.contains(&call.thread));
    let rules: BTreeMap<i64, _> = calls.map(|call| (call.number, Vec::new())).collect();
    let arch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, refusal(mode), SeccompAction::Allow, arch)?;
    Ok(filter.try_into()?)
}

/// Lets everything through but what `rules` names.
fn refusing(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    refusal: SeccompAction,
) -> Result<BpfProgram, SeccompError> {
    let arch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refusal, arch)?.try_into()?)
}

/// What a call gets that is not in the table. ENOSYS, as from a kernel that does not have it: libraries then do without.
fn refusal(mode: SeccompMode) -> SeccompAction {
    match mode {
        SeccompMode::Strict => SeccompAction::KillProcess,
        SeccompMode::Audit => SeccompAction::Log,
        SeccompMode::Errno | SeccompMode::Off => SeccompAction::Errno(libc::ENOSYS as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own: there is no way back.
    fn confined(f: impl FnOnce() + Send + 'static) {
        let run = || {
            filter_engine_thread(SeccompMode::Errno).expect("a filter");
            f();
        };
        std::thread::spawn(run).join().expect("no panic");
    }

    #[test]
    fn what_is_not_in_the_table_fails() {
        confined(|| {
            let error = rustix::process::getpriority_process(None).expect_err("not there");
            assert_eq!(error, rustix::io::Errno::NOSYS);
            assert_eq!(rustix::process::getpid().as_raw_nonzero().get(), std::process::id() as i32);
        });
    }

    #[test]
    fn arguments_that_reach_further_are_refused() {
        let run = || {
            let filter = refusing(arguments::refused().expect("rules"), refusal(SeccompMode::Errno));
            apply_filter(&filter.expect("a program")).expect("a filter");
            use rustix::net::{AddressFamily, SocketType};
            let socket = |family| rustix::net::socket(family, SocketType::DGRAM, None).err();
            assert_eq!(socket(AddressFamily::INET), None);
            assert_eq!(socket(AddressFamily::NETLINK), None);
            assert_eq!(socket(AddressFamily::VSOCK), Some(rustix::io::Errno::NOSYS));
            let made = std::fs::File::create("/tmp/toe-never-made").map_err(|error| error.raw_os_error());
            assert_eq!(made.err(), Some(Some(libc::ENOSYS)));
            assert!(std::fs::File::open("/proc/self/stat").is_ok());
            let error = rustix::process::set_parent_process_death_signal(None).expect_err("not there");
            assert_eq!(error, rustix::io::Errno::NOSYS);
            assert!(rustix::thread::set_name(c"toe-test").is_ok());
            assert!(std::thread::spawn(|| ()).join().is_ok(), "threads are made");
        };
        std::thread::spawn(run).join().expect("no panic");
    }

    #[test]
    fn the_engines_thread_has_less_than_those_beside_it() {
        let of = |threads: &[Thread]| program(SeccompMode::Errno, threads).expect("a program").len();
        assert!(of(&[Thread::Any]) < of(&[Thread::Any, Thread::Helper]));
    }
}
