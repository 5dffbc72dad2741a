//! Anchors between two uses, against a fake engine: what stays open, who has it then, and when it is closed.

mod fake;

use fake::{Connection, Engine};
use toe::{fd_release, sys};
use toe_abi::entry::{Command, Completion};
use toe_base::AnchorHandle;

/// As the program's close does it.
fn close(c: Connection) {
    fd_release::close(c.fd);
    let _ = sys::close(c.fd);
    std::mem::forget(c);
}

/// Closes a connection whose anchor the library keeps.
fn keep(engine: &Engine, c: Connection) -> AnchorHandle {
    let (flow, fd) = (c.flow, c.fd);
    close(c);
    let (_, command, _) = engine.command();
    let Command::CloseRetained { flow: closed, anchor, abort: false } = command else {
        panic!("{command:?} is no CloseRetained")
    };
    assert_eq!(closed, flow);
    let [(open, kept)] = engine.open_anchors()[..] else { panic!("{:?}", engine.open_anchors()) };
    assert_eq!(open, anchor);
    assert!(kept != fd && toe::Stack::is_internal_fd(kept), "out of the program's way");
    anchor
}

/// Completions are taken.
fn look(engine: &Engine) {
    toe::Stack::attached(toe::stack::EngineIdx::FIRST)
        .into_iter()
        .flat_map(toe::Stack::queue_sets)
        .for_each(toe::queue::QueueSet::drain);
    let _ = engine.credits();
}

#[test]
fn the_next_connection_has_the_anchor_of_one_that_has_ended() {
    let engine = Engine::attached();
    let c = engine.connected();
    let queue_set = c.queue_set;
    let anchor = keep(&engine, c);
    let other = engine.connected();
    assert_eq!(engine.open_anchors().len(), 2, "the engine has not said yet that it can be used");
    engine.post(queue_set, Completion::AnchorFree { anchor });
    look(&engine);
    let again = engine.connected();
    let fds = engine.open_anchors();
    assert!(fds.contains(&(anchor, again.fd)), "{fds:?}");
    assert_eq!(fds.len(), 2, "it has moved: {fds:?}");
    drop((other, again));
    assert_eq!(engine.open_anchors(), []);
}

#[test]
fn what_somebody_else_has_too_is_closed() {
    let engine = Engine::attached();
    let c = engine.connected();
    let queue_set = c.queue_set;
    let anchor = keep(&engine, c);
    engine.post(queue_set, Completion::AnchorShared { anchor });
    look(&engine);
    assert_eq!(engine.open_anchors(), []);
}

#[test]
fn a_connection_that_a_child_may_have_ends_with_its_last_descriptor() {
    let engine = Engine::attached();
    let c = engine.connected();
    toe::fork::before_child();
    close(c);
    engine.expect_copy_closed();
    // A descriptor that goes to another process in a message.
    let c = engine.connected();
    c.socket.mark_shared(c.fd);
    close(c);
    engine.expect_copy_closed();
}

#[test]
fn no_more_are_kept_than_a_part_of_what_the_process_may_have() {
    let engine = Engine::attached();
    let connections: Vec<_> = (0..100).map(|_| engine.connected()).collect();
    connections.into_iter().for_each(close);
    let kept = engine.open_anchors().len();
    assert!((1..=64).contains(&kept), "{kept}");
    let limit = sys::descriptors_max();
    assert!(kept as u64 <= limit / 32, "{kept} of {limit}");
}
