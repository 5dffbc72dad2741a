//! Where the interrupts of queue sets have their names: sockets need one to be sent to. The directory is the engine's
//! alone, so that nobody else can interrupt a host. Used by `attach`.

use crate::anchor_root::AnchorRoot;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use toe_ring::{IrqLine, irq_pair};

#[derive(Debug)]
pub struct IrqNames {
    root: Arc<AnchorRoot>,
    made: u64,
}

impl IrqNames {
    pub fn new() -> std::io::Result<IrqNames> {
        Ok(IrqNames { root: Arc::new(AnchorRoot::make()?), made: 0 })
    }

    /// The directory that all of them are in.
    pub fn root(&self) -> &Arc<AnchorRoot> {
        &self.root
    }

    /// A new interrupt: the engine's end, and the host's.
    pub fn interrupt(&mut self) -> std::io::Result<(IrqLine, OwnedFd)> {
        self.made += 1;
        Ok(irq_pair(self.root.path_to(&self.made.to_string()).into())?)
    }
}
