//! What happens outside the rings, and when the engine is to end. Looked at by the run loop.

use crate::poller::{Poller, Token};
use crate::watchdog::Watchdog;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::OwnedFd;

/// When the engine is to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    #[default]
    No,
    /// As soon as nobody is attached and nobody holds a socket of the engine.
    WhenUnused,
    Now,
}

/// What happens outside the rings.
#[derive(Debug)]
pub struct OutsideEvents {
    pub(crate) poller: Poller,
    /// What has; kept between rounds for its memory.
    pub(crate) tokens: Vec<Token>,
    signals: Option<SignalFd>,
    /// The pipe of whoever started this private engine.
    owner: Option<OwnedFd>,
    /// Tells a service manager of the rounds.
    pub watchdog: Option<Watchdog>,
    pub(crate) stop: Stop,
}

impl OutsideEvents {
    pub(crate) fn new(poller: Poller) -> OutsideEvents {
        OutsideEvents {
            poller,
            tokens: Vec::new(),
            signals: None,
            owner: None,
            watchdog: None,
            stop: Stop::No,
        }
    }

    /// Ends the engine cleanly on SIGTERM and SIGINT. They are blocked from here on.
    pub fn catch_signals(&mut self) -> std::io::Result<()> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.thread_block()?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        self.poller.add(&signals, Token::Signal)?;
        self.signals = Some(signals);
        Ok(())
    }

    /// Ends the engine when `pipe` is closed at its other end and nobody uses the engine any more.
    pub fn end_with(&mut self, pipe: OwnedFd) -> std::io::Result<()> {
        self.poller.add_for_hangup(&pipe, Token::Owner)?;
        self.owner = Some(pipe);
        Ok(())
    }

    /// Whoever started this private engine has ended.
    pub(crate) fn owner_gone(&mut self) {
        // Closed here, or it would report its end for ever.
        self.owner = None;
        self.stop_at(Stop::WhenUnused);
    }

    /// Somebody who may has asked for it; what is to be at once stays so.
    pub(crate) fn stop_at(&mut self, stop: Stop) {
        if self.stop != Stop::Now {
            self.stop = stop;
        }
    }

    pub(crate) fn is_over(&self, is_unused: bool) -> bool {
        match self.stop {
            Stop::No => false,
            Stop::WhenUnused => is_unused,
            Stop::Now => true,
        }
    }
}
