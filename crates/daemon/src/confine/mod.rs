//! The engine gives up what it does not need any more. Called by `main`, once, after everything is open that takes root:
//! links, the kernel's news, the control socket, the log.
//!
//! | step | why there |
//! |---|---|
//! | [`Rights::take`] | what the links need to be opened again decides what is kept |
//! | limits, OOM score | only root may raise them |
//! | files given to the engine's user | only root may |
//! | bounding set, groups, user, capabilities | in this order each is still allowed |
//! | no_new_privs, not dumpable | a filter needs the one; changing the user undoes the other |
//! | [`seccomp`], for the process | threads made from here on inherit it |
//!
//! What came before stays: the listening socket still tells programs that its starter listens ([`crate::policy`]), which is
//! what they trust it by.

mod arguments;
pub mod calls;
pub mod rights;
pub mod seccomp;

use crate::config::{Config, RunAs, SeccompMode};
use crate::runtime::EngineName;
use rights::Rights;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::fchown;

/// What the kernel takes off an engine's badness when memory is short: with it all programs would lose their connections.
/// A small part of the scale (-1000 to 1000), so that one gone mad is still found.
const OOM_SCORE: &str = "-500";
/// Files are made for the engine's user, and to be looked at by others.
const UMASK: u32 = 0o022;

/// What could not be given up.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    #[error("cannot become user {uid} ({error}); choose another with --user")]
    User { uid: u32, error: std::io::Error },
    #[error("cannot give up rights: {what} ({error})")]
    Refused { what: &'static str, error: std::io::Error },
    #[error("system calls cannot be filtered ({0}); start the engine with --seccomp off to do without")]
    Seccomp(#[from] seccomp::SeccompError),
}

/// Becomes the engine's user with as few rights as its links allow, and says in the log what came of it.
///
/// `dirs`, of anchors and the like, become that user's, and so does `log`, which goes with the engine.
pub fn confine(
    config: &Config,
    name: &EngineName,
    dirs: &[BorrowedFd<'_>],
    log: Option<BorrowedFd<'_>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let rights = Rights::take(config.ports.iter().map(|port| port.spec.driver));
    limit_resources();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(UMASK));
    rights.drop_others_for_good();
    let user = config.users.user;
    if rustix::process::geteuid().is_root() && user.uid != 0 {
        match rights::become_user(user, || hand_over(name, dirs, log, user)) {
            Ok(()) => {}
            Err(error) if user.is_default => {
                tracing::warn!(%error, uid = user.uid, "the engine stays its starter's, with fewer rights; give it another --user");
            }
            Err(error) => return Err(ConfineError::User { uid: user.uid, error }.into()),
        }
    }
    // Nothing is kept from being unmounted, and no path means something else because of where the engine was started.
    std::env::set_current_dir("/")?;
    let refused = |what| move |error: rustix::io::Errno| ConfineError::Refused { what, error: error.into() };
    rights.keep_only().map_err(refused("capabilities"))?;
    rustix::thread::set_no_new_privs(true).map_err(refused("no_new_privs"))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(refused("not dumpable"))?;
    if config.users.seccomp != SeccompMode::Off {
        seccomp::filter_process(config.users.seccomp)?;
    }
    tracing::info!(
        uid = rustix::process::geteuid().as_raw(),
        capabilities = %rights,
        seccomp = config.users.seccomp.as_str(),
        "rights given up"
    );
    Ok(())
}

/// The engine's own thread needs less than the threads beside it. Called last, when those are there.
pub fn confine_engine_thread(mode: SeccompMode) -> Result<(), ConfineError> {
    if mode == SeccompMode::Off { Ok(()) } else { Ok(seccomp::filter_engine_thread(mode)?) }
}

fn hand_over(
    name: &EngineName,
    dirs: &[BorrowedFd<'_>],
    log: Option<BorrowedFd<'_>>,
    user: RunAs,
) -> std::io::Result<()> {
    name.hand_over(user).map_err(std::io::Error::other)?;
    for dir in dirs {
        fchown(dir, Some(user.uid), Some(user.gid))?;
    }
    // In a directory that is root's alone only root could remove it, and would find it somebody else's.
    match log.filter(|_| RunAs::is_own_group(user.gid)) {
        Some(log) => fchown(log, Some(user.uid), None),
        None => Ok(()),
    }
}

/// None of these is needed to work; without the right to it things stay as they are.
fn limit_resources() {
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    // What lies in the engine's memory are the streams of all its users.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(Resource::Core, none);
}
