//! Deliberate mistakes, so that a test can show that each checker finds what it is there for.

use crate::checkers::captures::Blunder;
use crate::swarm::Fault;

/// What is wrong with the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A link changes a byte of payload and mends the checksum.
    FlipPayload,
    /// A link makes an acknowledgement cover what never arrived.
    FlipAcknowledgement,
    /// A frame leaves with an acknowledgement from before the last one.
    AcknowledgeLess,
    /// A frame leaves with a wrong checksum.
    WrongChecksum,
    /// A frame leaves with the byte before its own.
    ShiftSequence,
    /// What the engine writes for a session lands elsewhere.
    MisplaceWrites,
    /// A data completion is lost.
    LoseData,
    /// Time-outs are not handled.
    ForgetTimeouts,
    /// At the end programs keep their sockets and listeners.
    KeepSockets,
    /// A kernel forgets what it is told to steer.
    ForgetSteering,
    /// Nobody looks for idle pages.
    ForgetTrims,
    /// Captures are shown something else.
    Capture(Blunder),
}

impl Sabotage {
    pub const ALL: &'static [Sabotage] = &[
        Sabotage::FlipPayload,
        Sabotage::FlipAcknowledgement,
        Sabotage::AcknowledgeLess,
        Sabotage::WrongChecksum,
        Sabotage::ShiftSequence,
        Sabotage::MisplaceWrites,
        Sabotage::LoseData,
        Sabotage::ForgetTimeouts,
        Sabotage::KeepSockets,
        Sabotage::ForgetSteering,
        Sabotage::ForgetTrims,
        Sabotage::Capture(Blunder::LosesCopies),
        Sabotage::Capture(Blunder::ShowsTwice),
        Sabotage::Capture(Blunder::FlipsCopies),
        Sabotage::Capture(Blunder::HidesLocal),
    ];

    pub fn with_captures(self) -> Option<Blunder> {
        if let Sabotage::Capture(blunder) = self { Some(blunder) } else { None }
    }

    /// The fault without which it makes no difference.
    pub fn needs(self) -> Option<Fault> {
        match self {
            Sabotage::ForgetSteering => Some(Fault::KernelAddress),
            Sabotage::ForgetTrims => Some(Fault::IdleMemory),
            Sabotage::Capture(_) => Some(Fault::Watched),
            _ => None,
        }
    }
}
