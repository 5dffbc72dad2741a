//! With which congestion control both stacks measure. Called by `runner`, before the first row.

use crate::error::{Error, Result};
use crate::options::{CONGESTION, Options};
use toe_lab::lab::{Lab, Side};

const SETTING: &str = "net/ipv4/tcp_congestion_control";
/// What every kernel has, and lets every namespace have.
const ALWAYS: &str = "reno";

/// What the sockets of the two stacks have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Congestion {
    /// Linux's, where that can be told.
    pub(crate) linux: Option<String>,
    /// What the engines are started with beside the defaults.
    pub(crate) engine: Vec<String>,
}

impl Congestion {
    /// Gives the sockets of another lab the same.
    pub(crate) fn give(&self, lab: &Lab) -> Result<()> {
        match &self.linux {
            Some(name) if lab.has_namespaces() => set_to(lab, name),
            _ => Ok(()),
        }
    }
}

/// Gives Linux's sockets theirs. A namespace may have only what the machine's administrator lets all have
/// (net.ipv4.tcp_allowed_congestion_control); where that leaves out the engine's own, both stacks get what there is always.
pub(crate) fn set(lab: &Lab, options: &Options) -> Result<Congestion> {
    if !lab.has_namespaces() {
        if options.congestion.is_some() {
            return Err(Error::Options(
                "--congestion needs root: it is set in namespaces of its own".to_owned(),
            ));
        }
        let own = std::fs::read_to_string(format!("/proc/sys/{SETTING}")).ok();
        return Ok(Congestion { linux: own.map(|text| text.trim().to_owned()), ..Congestion::default() });
    }
    let name = options.congestion.as_deref().unwrap_or(CONGESTION);
    match (set_to(lab, name), &options.congestion) {
        (Ok(()), _) => Ok(Congestion { linux: Some(name.to_owned()), ..Congestion::default() }),
        (Err(error), Some(_)) => Err(Error::Options(format!(
            "Linux's sockets cannot have the congestion control '{name}' here ({error}); \
             'sysctl net.ipv4.tcp_allowed_congestion_control' lists what namespaces may have"
        ))),
        (Err(_), None) => {
            set_to(lab, ALWAYS)?;
            eprintln!(
                "both stacks measure with '{ALWAYS}': namespaces may not have '{name}' here \
                 ('sysctl -w net.ipv4.tcp_allowed_congestion_control=\"... {name}\"' would let them)"
            );
            let engine = vec![format!("--congestion={ALWAYS}")];
            Ok(Congestion { linux: Some(ALWAYS.to_owned()), engine })
        }
    }
}

fn set_to(lab: &Lab, name: &str) -> Result<()> {
    [Side::Server, Side::Client].into_iter().try_for_each(|side| Ok(lab.set_kernel(side, SETTING, name)?))
}
