//! Memory: what an arena has given out is held by exactly one flow, and at the end all of it has come back.

use crate::node::{Node, Session};
use toe_base::SessionId;

/// At any moment.
pub fn counts_agree(node: &Node) -> Result<(), String> {
    node.engine.audit_memory()?;
    node.engine.audit_listeners()
}

/// When every program has let go of everything and time has passed.
pub fn all_came_back(node: &Node) -> Result<(), String> {
    let engine = &node.engine;
    if engine.flow_count() > 0 {
        return Err(format!("connections are left: {:?}", engine.sockets()));
    }
    let staging = engine.session_view(SessionId(0)).receive_memory_used;
    if staging > 0 {
        return Err(format!("{staging} octets of staging memory are left"));
    }
    if !engine.poll_timeout().is_far_future() {
        return Err("a deadline is left".to_owned());
    }
    for session in &node.sessions {
        session_is_empty(node, session)?;
    }
    Ok(())
}

fn session_is_empty(node: &Node, session: &Session) -> Result<(), String> {
    let id = session.id;
    if !session.alive {
        return if session.forgotten { Ok(()) } else { Err(format!("dead session {} is not drained", id.0)) };
    }
    let view = node.engine.session_view(id);
    if (view.flows, view.listeners, view.receive_memory_used) != (0, 0, 0) {
        return Err(format!("session {} still has {view:?}", id.0));
    }
    let lent = session.send_arena.used();
    if lent > 0 && !session.is_hostile() {
        return Err(format!("{lent} octets of send memory of session {} did not come back", id.0));
    }
    Ok(())
}
