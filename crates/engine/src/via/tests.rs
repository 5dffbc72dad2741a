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

fn listen(
    via: &mut Via<u32>,
    session: u16,
    from: Option<NodeName>,
    discriminator: u64,
) -> Result<(ViaId, bool), Errno> {
    via.listen(SessionId(session), from, discriminator, 200 + u32::from(session))
}

#[test]
fn who_comes_first_does_not_matter() {
    for asks_first in [true, false] {
        let mut via = two();
        let asked = asks_first.then(|| ask(&mut via, 2, "a", 5));
        let (listener, waits) = listen(&mut via, 1, None, 5).expect("a listener");
        assert_eq!(waits, asks_first);
        let (connection, rung) = asked.unwrap_or_else(|| ask(&mut via, 2, "a", 5));
        assert_eq!(rung, if asks_first { vec![] } else { vec![SessionId(1)] });
        assert_eq!(via.fetch(SessionId(2), connection), Err(Errno::EAGAIN));
        let taken = Taken { connection, asker: SessionId(2), peer: name("b"), attributes: Attributes(2) };
        assert_eq!(via.take(SessionId(1), listener), Ok(taken));
        assert_eq!(via.take(SessionId(1), listener), Err(Errno::EAGAIN));
        let fetched = Fetched { connection, other: Some(SessionId(1)), peer: name("a") };
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
    let (of_b, _) = listen(&mut via, 1, Some(name("b")), 1).expect("a listener");
    assert_eq!(via.take(SessionId(1), of_b).map(|taken| taken.connection), Ok(second));
    assert_eq!(via.take(SessionId(1), of_b), Err(Errno::EAGAIN));
    let (of_all, _) = listen(&mut via, 1, None, 1).expect("a listener");
    assert_eq!(via.take(SessionId(1), of_all).map(|taken| taken.connection), Ok(first));
    assert_eq!(via.take(SessionId(1), of_all).map(|taken| taken.connection), Ok(third));
    assert_eq!(ask(&mut via, 3, "a", 1).1, [SessionId(1)], "only the one that it is for");
}

#[test]
fn to_another_user_nobody_is_there() {
    let mut via = two();
    via.name(SessionId(9), STRANGER, name("b")).expect("a name");
    let (listener, _) = listen(&mut via, 1, None, 5).expect("a listener");
    let (connection, rung) = ask(&mut via, 9, "a", 5);
    assert!(rung.is_empty());
    assert_eq!(via.take(SessionId(1), listener), Err(Errno::EAGAIN));
    assert_eq!(via.take(SessionId(9), listener), Err(Errno::ENOENT));
    assert_eq!(via.fetch(SessionId(1), connection), Err(Errno::ENOENT));
    assert_eq!(via.forget(SessionId(9), listener), Err(Errno::ENOENT));
}

fn gone(handle: ViaId, payer: Option<u32>, other: Option<SessionId>) -> Ended<u32> {
    Ended { handle, payer, is_listener: false, other, by_taker: false, is_retained: false }
}

/// Or what it was sent is lost.
#[test]
fn who_has_asked_finds_its_connection_though_the_other_side_has_left_already() {
    for dies in [false, true] {
        let mut via = two();
        let (made, _) = ask(&mut via, 2, "a", 5);
        let (listener, _) = listen(&mut via, 1, None, 5).expect("a listener");
        via.take(SessionId(1), listener).expect("a connection");
        let ended = if dies {
            via.forget_session(SessionId(1)).into_iter().find(|ended| ended.handle == made)
        } else {
            via.forget(SessionId(1), made).ok()
        };
        let kept = Ended { by_taker: true, is_retained: true, ..gone(made, None, Some(SessionId(2))) };
        assert_eq!(ended, Some(kept));
        assert_eq!(via.forget(SessionId(1), made), Err(Errno::ENOENT), "no longer its");
        assert_eq!(
            via.fetch(SessionId(2), made),
            Ok(Fetched { connection: made, other: None, peer: name("a") })
        );
        assert_eq!(via.forget(SessionId(2), made), Ok(gone(made, Some(102), None)), "and pays until then");
    }
}

/// A question is to cost no more than there are sessions.
#[test]
fn a_session_is_told_once_however_often_it_listens() {
    let mut via = two();
    for _ in 0..100 {
        listen(&mut via, 1, None, 5).expect("a listener");
    }
    assert_eq!(ask(&mut via, 2, "a", 5).1, [SessionId(1)]);
}

/// A listener that ended was looked for among all of its place, and a question looked at each of them: the end of a process with 401 sessions that
/// had 1008 listeners each at one place took 23 s. What a place is found by grows with sessions alone.
#[test]
fn what_is_looked_at_of_a_place_grows_with_its_sessions_and_not_with_their_listeners() {
    const SESSIONS: u16 = 20;
    let mut via = two();
    for session in 10..10 + SESSIONS {
        via.name(SessionId(session), HERE, name("a")).expect("a name");
        for nth in 0..HANDLES_MAX {
            listen(&mut via, session, (nth % 2 == 0).then(|| name("b")), 5).expect("a listener");
        }
    }
    let records = |via: &Via<u32>| via.listening.len();
    assert_eq!(records(&via), 2 * usize::from(SESSIONS), "those for b and those for any");
    assert_eq!(ask(&mut via, 2, "a", 5).1.len(), usize::from(SESSIONS));
    for left in (0..SESSIONS).rev() {
        assert_eq!(via.forget_session(SessionId(10 + left)).len(), HANDLES_MAX);
        assert_eq!(records(&via), 2 * usize::from(left));
        assert_eq!(ask(&mut via, 2, "a", 5).1.len(), usize::from(left), "who is gone is not told");
    }
}

/// One that is for others is not looked at, however many wait before it.
#[test]
fn what_waits_for_a_listener_is_found_by_its_node() {
    let mut via = two();
    via.name(SessionId(3), HERE, name("c")).expect("a name");
    let of_c: Vec<ViaId> = (0..HANDLES_MAX).map(|_| ask(&mut via, 3, "a", 1).0).collect();
    let (of_b, _) = ask(&mut via, 2, "a", 1);
    assert_eq!(via.asked.len(), 2 * (HANDLES_MAX + 1), "each for its node and for any");
    let (for_b, waits) = listen(&mut via, 1, Some(name("b")), 1).expect("a listener");
    assert!(waits);
    assert_eq!(via.take(SessionId(1), for_b).map(|taken| taken.connection), Ok(of_b));
    let (for_d, waits) = listen(&mut via, 1, Some(name("d")), 1).expect("a listener");
    assert_eq!((waits, via.take(SessionId(1), for_d)), (false, Err(Errno::EAGAIN)));
    // Withdrawn ones leave the order of the others as it was.
    via.forget(SessionId(3), of_c[0]).expect("its own");
    let (for_any, _) = listen(&mut via, 1, None, 1).expect("a listener");
    assert_eq!(via.take(SessionId(1), for_any).map(|taken| taken.connection), Ok(of_c[1]));
    via.forget_session(SessionId(3));
    assert_eq!(via.take(SessionId(1), for_any), Err(Errno::EAGAIN));
    assert!(via.asked.is_empty());
}

/// A listener that hears the same as another one of its session leaves that one where it is.
#[test]
fn a_listener_that_ends_takes_no_other_with_it() {
    let mut via = two();
    let [first, second] = [0, 1].map(|_| listen(&mut via, 1, None, 5).expect("a listener").0);
    via.forget(SessionId(1), first).expect("its own");
    assert_eq!(ask(&mut via, 2, "a", 5).1, [SessionId(1)]);
    via.forget(SessionId(1), second).expect("its own");
    assert_eq!(ask(&mut via, 2, "a", 5).1, []);
}

#[test]
fn the_end_of_a_session_ends_all_that_it_has_and_tells_the_others() {
    let mut via = two();
    let (listener, _) = listen(&mut via, 1, None, 5).expect("a listener");
    let (made, _) = ask(&mut via, 2, "a", 5);
    via.take(SessionId(1), listener).expect("a connection");
    via.fetch(SessionId(2), made).expect("it is made");
    let (waits, _) = ask(&mut via, 1, "b", 6);
    let ended = via.forget_session(SessionId(1));
    let of = |handle| ended.iter().find(|end| end.handle == handle).copied();
    assert_eq!(of(listener), Some(Ended { is_listener: true, ..gone(listener, Some(201), None) }));
    assert_eq!(of(made), Some(Ended { by_taker: true, ..gone(made, Some(102), Some(SessionId(2))) }));
    assert_eq!(of(waits), Some(gone(waits, Some(101), None)));
    assert!(via.is_empty() && via.asked.is_empty() && via.listening.is_empty());
    assert_eq!(via.forget(SessionId(2), made), Err(Errno::ENOENT), "it has ended");
    assert_eq!(listen(&mut via, 1, None, 5), Err(Errno::EINVAL), "it has no name any more");
}

#[test]
fn a_session_has_a_bounded_number_of_handles() {
    let mut via = two();
    for _ in 0..HANDLES_MAX {
        ask(&mut via, 2, "nobody", 5);
    }
    let to = (name("a"), 5);
    assert_eq!(via.ask(SessionId(2), to, Attributes(0), 0), Err(Errno::ENOBUFS));
    assert_eq!(via.may_add(SessionId(2)), Err(Errno::ENOBUFS));
    assert_eq!(listen(&mut via, 2, None, 5), Err(Errno::ENOBUFS));
    assert_eq!(via.name(SessionId(2), THERE, name("x")), Err(Errno::EALREADY));
    assert_eq!(via.forget_session(SessionId(2)).len(), HANDLES_MAX);
}
