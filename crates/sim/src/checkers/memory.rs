//! Memory: what an arena has given out is held by exactly one flow, a channel's slots by the flows that use them, an anchor
//! by who was not told that it is free; and at the end all of it has come back.

use crate::kernel::Kernel;
use crate::node::{Node, Session};
use std::collections::BTreeSet;
use toe_base::SessionId;

/// At any moment.
pub fn counts_agree(node: &Node) -> Result<(), String> {
    node.engine.view().audit()?;
    let (channels, open) = (node.engine.view().totals().channels, node.memory.channels.len());
    if channels != open {
        return Err(format!("{channels} channels, but {open} have memory"));
    }
    free_anchors_are_free(node)
}

/// No program has a descriptor of an anchor that the engine has given back.
fn free_anchors_are_free(node: &Node) -> Result<(), String> {
    let free: BTreeSet<u32> = node.sessions.iter().flat_map(|s| &s.free_anchors).map(|a| a.0).collect();
    for session in &node.sessions {
        let sockets = session.sockets.iter().filter(|s| !s.closed).map(|s| s.anchor);
        let listeners = session.listeners.iter().filter(|l| !l.closed).map(|l| l.anchor);
        if let Some(anchor) = sockets.chain(listeners).find(|anchor| free.contains(&anchor.0)) {
            return Err(format!("{anchor:?} of session {} is said to be free", session.id.0));
        }
    }
    Ok(())
}

/// When every program has let go of everything and time has passed.
pub fn all_came_back(node: &Node) -> Result<(), String> {
    let engine = &node.engine;
    if engine.view().totals().flows > 0 {
        return Err(format!("connections are left: {:?}", engine.view().sockets(toe_base::Instant::ZERO)));
    }
    let staging = engine.view().session(SessionId(0)).receive_memory_used;
    if staging > 0 {
        return Err(format!("{staging} bytes of staging memory are left"));
    }
    if !engine.poll_timeout().is_far_future() {
        return Err("a deadline is left".to_owned());
    }
    for session in &node.sessions {
        session_is_empty(node, session)?;
    }
    node.kernel.as_ref().map_or(Ok(()), Kernel::has_nothing)
}

fn session_is_empty(node: &Node, session: &Session) -> Result<(), String> {
    let id = session.id;
    if !session.alive {
        return if session.forgotten { Ok(()) } else { Err(format!("dead session {} is not drained", id.0)) };
    }
    let view = node.engine.view().session(id);
    if (view.flows, view.listeners, view.receive_memory_used) != (0, 0, 0) {
        return Err(format!("session {} still has {view:?}", id.0));
    }
    let lent = session.send_arena.used();
    if lent > 0 && !session.is_hostile() {
        return Err(format!("{lent} bytes of send memory of session {} did not come back", id.0));
    }
    Ok(())
}
