//! A session's memory is touched by the engine only where the engine may, and an ordinary session is told only of what is
//! its own, whatever the others do.

use crate::memory::Part;
use std::ops::Range;
use toe_abi::attach::FenceReason;
use toe_base::SessionId;

/// The engine is about to write to `range`.
pub fn may_write(session: SessionId, part: Part, range: &Range<u64>) -> Result<(), String> {
    match part {
        Part::Receive | Part::Options => Ok(()),
        other => Err(format!("the engine wrote to {range:?} of session {}: {other:?}", session.0)),
    }
}

/// The engine is about to read `range`.
pub fn may_read(session: SessionId, part: Part, range: &Range<u64>) -> Result<(), String> {
    match part {
        Part::Receive | Part::Send | Part::Options => Ok(()),
        Part::Outside => Err(format!("the engine read {range:?} of session {}, which is outside", session.0)),
    }
}

/// An entry of an ordinary session was refused.
pub fn is_not_fenced(session: SessionId, result: Result<(), FenceReason>) -> Result<(), String> {
    result.map_err(|reason| {
        format!("session {}, which keeps to the contract, is fenced: {reason:?}", session.0)
    })
}

/// A completion names something that the session does not have.
pub fn unknown_name(session: SessionId, completion: &impl std::fmt::Debug) -> Result<(), String> {
    Err(format!("session {} is told of what is not its own: {completion:?}", session.0))
}
