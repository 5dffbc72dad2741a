//! Meetings of virtual interfaces.

use super::*;
use toe_base::NetNs;

const HERE: Cred = Cred { uid: 7, netns: NetNs(1) };
const THERE: Cred = Cred { uid: 7, netns: NetNs(2) };
const STRANGER: Cred = Cred { uid: 8, netns: NetNs(1) };

fn name(text: &str) -> NodeName {
    NodeName::new(text.as_bytes()).expect("a name")
}

/// Sessions 1 and 2 of one user in two namespaces, at nodes a and b.
fn two() -> Via<u32> {
    let mut via = Via::default();
    via.name(SessionId(1), HERE, name("a")).expect("a name");
    via.name(SessionId(2), THERE, name("b")).expect("a name");
    via
}

fn ask(via: &mut Via<u32>, session: u16, to: &str, discriminator: u64) -> (ViaId, Vec<SessionId>) {
    let to = (name(to), discriminator);
    via.ask(SessionId(session), to, Attributes(u64::from(session)), 100 + u32::from(session))
        .expect("a question")
}

#[test]
fn who_comes_first_does_not_matter() {
    for asks_first in [true, false] {
        let mut via = two();
        let asked = asks_first.then(|| ask(&mut via, 2, "a", 5));
        let (listener, waits) = via.listen(SessionId(1), None, 5).expect("a listener");
        assert_eq!(waits, asks_first);
        let (connection, rung) = asked.unwrap_or_else(|| ask(&mut via, 2, "a", 5));
        assert_eq!(rung, if asks_first { vec![] } else { vec![SessionId(1)] });
        assert_eq!(via.fetch(SessionId(2), connection), Err(Errno::EAGAIN));
        let taken = Taken { connection, asker: SessionId(2), peer: name("b"), attributes: Attributes(2) };
        assert_eq!(via.take(SessionId(1), listener), Ok(taken));
        assert_eq!(via.take(SessionId(1), listener), Err(Errno::EAGAIN));
        let fetched = Fetched { other: Some(SessionId(1)), peer: name("a") };
        assert_eq!(via.fetch(SessionId(2), connection), Ok(fetched));
        assert_eq!(via.fetch(SessionId(2), connection), Err(Errno::EALREADY), "once");
        assert_eq!(via.fetch(SessionId(1), connection), Err(Errno::ENOENT), "it has it");
    }
}

#[test]
fn a_listener_hears_those_that_it_is_for_in_their_order() {
    let mut via = two();
    via.name(SessionId(3), HERE, name("c")).expect("a name");
    let (first, _) = ask(&mut via, 3, "a", 1);
    let (second, _) = ask(&mut via, 2, "a", 1);
    let (third, _) = ask(&mut via, 3, "a", 1);
    ask(&mut via, 3, "a", 2);
    let (of_b, _) = via.listen(SessionId(1), Some(name("b")), 1).expect("a listener");
    assert_eq!(via.take(SessionId(1), of_b).map(|taken| taken.connection), Ok(second));
    assert_eq!(via.take(SessionId(1), of_b), Err(Errno::EAGAIN));
    let (of_all, _) = via.listen(SessionId(1), None, 1).expect("a listener");
    assert_eq!(via.take(SessionId(1), of_all).map(|taken| taken.connection), Ok(first));
    assert_eq!(via.take(SessionId(1), of_all).map(|taken| taken.connection), Ok(third));
    assert_eq!(ask(&mut via, 3, "a", 1).1, [SessionId(1)], "only the one that it is for");
}

#[test]
fn to_another_user_nobody_is_there() {
    let mut via = two();
    via.name(SessionId(9), STRANGER, name("b")).expect("a name");
    let (listener, _) = via.listen(SessionId(1), None, 5).expect("a listener");
    let (connection, rung) = ask(&mut via, 9, "a", 5);
    assert!(rung.is_empty());
    assert_eq!(via.take(SessionId(1), listener), Err(Errno::EAGAIN));
    assert_eq!(via.take(SessionId(9), listener), Err(Errno::ENOENT));
    assert_eq!(via.fetch(SessionId(1), connection), Err(Errno::ENOENT));
    assert_eq!(via.forget(SessionId(9), listener), Err(Errno::ENOENT));
}

fn gone(handle: ViaId, payer: Option<u32>, other: Option<SessionId>) -> Ended<u32> {
    Ended { handle, payer, other, by_taker: false, is_kept: false }
}

/// Or what it was sent is lost.
#[test]
fn who_has_asked_finds_its_connection_though_the_other_side_has_left_already() {
    for dies in [false, true] {
        let mut via = two();
        let (made, _) = ask(&mut via, 2, "a", 5);
        let (listener, _) = via.listen(SessionId(1), None, 5).expect("a listener");
        via.take(SessionId(1), listener).expect("a connection");
        let ended = if dies {
            via.forget_session(SessionId(1)).into_iter().find(|ended| ended.handle == made)
        } else {
            via.forget(SessionId(1), made).ok()
        };
        let kept = Ended { by_taker: true, is_kept: true, ..gone(made, None, Some(SessionId(2))) };
        assert_eq!(ended, Some(kept));
        assert_eq!(via.forget(SessionId(1), made), Err(Errno::ENOENT), "no longer its");
        assert_eq!(via.fetch(SessionId(2), made), Ok(Fetched { other: None, peer: name("a") }));
        assert_eq!(via.forget(SessionId(2), made), Ok(gone(made, Some(102), None)), "and pays until then");
    }
}

/// A question is to cost no more than there are sessions.
#[test]
fn a_session_is_told_once_however_often_it_listens() {
    let mut via = two();
    for _ in 0..100 {
        via.listen(SessionId(1), None, 5).expect("a listener");
    }
    assert_eq!(ask(&mut via, 2, "a", 5).1, [SessionId(1)]);
}

#[test]
fn the_end_of_a_session_ends_all_that_it_has_and_tells_the_others() {
    let mut via = two();
    let (listener, _) = via.listen(SessionId(1), None, 5).expect("a listener");
    let (made, _) = ask(&mut via, 2, "a", 5);
    via.take(SessionId(1), listener).expect("a connection");
    via.fetch(SessionId(2), made).expect("it is made");
    let (waits, _) = ask(&mut via, 1, "b", 6);
    let ended = via.forget_session(SessionId(1));
    let of = |handle| ended.iter().find(|end| end.handle == handle).copied();
    assert_eq!(of(listener), Some(gone(listener, None, None)));
    assert_eq!(of(made), Some(Ended { by_taker: true, ..gone(made, Some(102), Some(SessionId(2))) }));
    assert_eq!(of(waits), Some(gone(waits, Some(101), None)));
    assert!(via.is_empty() && via.asked.is_empty() && via.listening.is_empty());
    assert_eq!(via.forget(SessionId(2), made), Err(Errno::ENOENT), "it has ended");
    assert_eq!(via.listen(SessionId(1), None, 5), Err(Errno::EINVAL), "it has no name any more");
}

#[test]
fn a_session_has_a_bounded_number_of_handles() {
    let mut via = two();
    for _ in 0..HANDLES_MAX {
        ask(&mut via, 2, "nobody", 5);
    }
    let to = (name("a"), 5);
    assert_eq!(via.ask(SessionId(2), to, Attributes(0), 0), Err(Errno::ENOBUFS));
    assert_eq!(via.may_ask(SessionId(2)), Err(Errno::ENOBUFS));
    assert_eq!(via.listen(SessionId(2), None, 5), Err(Errno::ENOBUFS));
    assert_eq!(via.name(SessionId(2), THERE, name("x")), Err(Errno::EALREADY));
    assert_eq!(via.forget_session(SessionId(2)).len(), HANDLES_MAX);
}
