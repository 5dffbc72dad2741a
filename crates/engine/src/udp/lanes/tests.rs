//! Who meets whom, and who does not.

use super::*;

const USER: Cred = Cred { uid: 1000, netns: NetNs(7) };
const SERVER: SessionId = SessionId(1);
const CLIENT: SessionId = SessionId(2);

fn at(last: u8, port: u16) -> Endpoint {
    Endpoint::new([127, 0, 0, last], port)
}

fn any(port: u16) -> Endpoint {
    Endpoint { addr: Addr::UNSPECIFIED_V4, port }
}

fn socket(local: Endpoint, identity: u64) -> Presented {
    Presented {
        local,
        peer: None,
        v6_only: false,
        identity,
        netns: USER.netns,
        shares_port: false,
        receive_buffer: 212_992,
    }
}

/// The server's socket hears of the client's, at 5000.
fn receives() -> Asked {
    Asked { session: SERVER, way: Way::Receives, peer: at(1, 5000), presented: socket(at(1, 53), 10) }
}

fn sends() -> Asked {
    Asked { session: CLIENT, way: Way::Sends, peer: at(1, 53), presented: socket(any(5000), 20) }
}

fn lanes() -> Lanes<u32> {
    Lanes::default()
}

fn meet(first: Asked, second: Asked) -> bool {
    let mut lanes = lanes();
    assert_eq!(lanes.ask(first, USER), Ok(Outcome::Wait));
    matches!(lanes.ask(second, USER), Ok(Outcome::Met { other, .. }) if other == first)
}

#[test]
fn two_that_say_the_same_meet_whoever_asks_first() {
    for (first, second) in [(sends(), receives()), (receives(), sends())] {
        let mut lanes = lanes();
        assert_eq!(lanes.ask(first, USER), Ok(Outcome::Wait));
        let met = Outcome::Met { other: first, ring_len: 1 << 18 };
        assert_eq!(lanes.ask(second, USER), Ok(met));
        assert_eq!(lanes.ask(second, USER), Ok(met), "nothing happens until the lane is made");
        let lane = lanes.add(second, first, 1 << 18, 5);
        assert_eq!(lanes.ask(first, USER), Ok(Outcome::Fetch { lane, ring_len: 1 << 18 }));
        assert_eq!(lanes.ask(first, USER), Ok(Outcome::Wait), "each end once");
        let ends = |session| lanes.of_session(session).collect::<Vec<_>>();
        assert_eq!((ends(SERVER), ends(CLIENT), ends(SessionId(3))), (vec![lane], vec![lane], vec![]));
        assert_eq!((lanes.remove(lane), lanes.remove(lane), lanes.is_empty()), (Some(5), None, true));
    }
}

#[test]
fn addresses_and_ports_must_fit() {
    assert!(meet(sends(), receives()));
    let to = |peer| Asked { peer, ..sends() };
    let from = |peer| Asked { peer, ..receives() };
    assert!(!meet(to(at(1, 54)), receives()), "another port");
    assert!(!meet(to(at(2, 53)), receives()), "another address");
    assert!(!meet(sends(), from(at(1, 5001))), "it heard of somebody else");
    assert!(!meet(sends(), from(at(2, 5000))), "not what an unbound socket sends from");
    let with = |local, asked: Asked| Asked { presented: Presented { local, ..asked.presented }, ..asked };
    assert!(meet(to(at(9, 53)), with(any(53), receives())), "one that is at all addresses");
    assert!(meet(with(at(2, 5000), sends()), from(at(2, 5000))));
    assert!(!meet(with(at(2, 5000), sends()), receives()));
    assert!(!meet(sends(), sends()) && !meet(receives(), receives()));
}

#[test]
fn both_families_meet_where_the_kernel_lets_them() {
    let dual = Endpoint { addr: Addr::UNSPECIFIED_V6, port: 53 };
    let presented = socket(dual, 10);
    assert!(meet(sends(), Asked { presented, ..receives() }));
    assert!(!meet(sends(), Asked { presented: Presented { v6_only: true, ..presented }, ..receives() }));
    let six = |port| Endpoint { addr: Addr::LOCALHOST_V6, port };
    let sends = Asked {
        peer: six(53),
        presented: socket(Endpoint { addr: Addr::UNSPECIFIED_V6, port: 5000 }, 20),
        ..sends()
    };
    let receives =
        Asked { peer: six(5000), presented: Presented { v6_only: true, ..presented }, ..receives() };
    assert!(meet(sends, receives));
}

#[test]
fn what_can_have_no_lane_is_refused() {
    let refused = |asked: Asked| assert_eq!(lanes().ask(asked, USER), Err(Errno::EINVAL), "{asked:?}");
    let presented = |change: fn(&mut Presented), mut asked: Asked| {
        change(&mut asked.presented);
        asked
    };
    for asked in [sends(), receives()] {
        refused(Asked { peer: Endpoint::new([10, 0, 0, 1], 53), ..asked });
        refused(Asked { peer: at(1, 0), ..asked });
        refused(presented(|presented| presented.netns = NetNs(8), asked));
        refused(presented(|presented| presented.local = at(1, 0), asked));
        refused(presented(|presented| presented.local = Endpoint::new([10, 0, 0, 1], 53), asked));
    }
    refused(presented(|presented| presented.shares_port = true, receives()));
    refused(presented(|presented| presented.receive_buffer = 1 << 24, receives()));
    refused(presented(|presented| presented.peer = Some(at(1, 5001)), receives()));
    let connected = presented(|presented| presented.peer = Some(at(1, 5000)), receives());
    assert!(meet(sends(), connected));
    assert!(meet(presented(|presented| presented.shares_port = true, sends()), receives()), "a sender may");
}

#[test]
fn nobody_meets_another_users_socket_or_another_namespaces_or_itself() {
    let mut lanes = lanes();
    assert_eq!(lanes.ask(receives(), USER), Ok(Outcome::Wait));
    for who in [Cred { uid: 1001, ..USER }, Cred { uid: 0, ..USER }] {
        assert_eq!(lanes.ask(sends(), who), Ok(Outcome::Wait));
    }
    let elsewhere = Cred { netns: NetNs(8), ..USER };
    let mut asked = sends();
    asked.presented.netns = NetNs(8);
    assert_eq!(lanes.ask(asked, elsewhere), Ok(Outcome::Wait));
    let itself = Asked { peer: at(1, 53), ..receives() };
    assert!(!meet(itself, Asked { way: Way::Sends, ..itself }));
}

#[test]
fn who_asks_without_end_waits_in_few_places() {
    let mut lanes = lanes();
    for n in 0..10_000u32 {
        let peer = at(1, 1 + (n % 60_000) as u16);
        assert_eq!(lanes.ask(Asked { peer, ..receives() }, USER), Ok(Outcome::Wait));
    }
    assert_eq!(lanes.waiting[&(USER.uid, USER.netns)].len(), WAITING_MAX);
    for _ in 0..10 {
        assert_eq!(lanes.ask(receives(), USER), Ok(Outcome::Wait));
    }
    assert_eq!(lanes.waiting[&(USER.uid, USER.netns)].iter().filter(|a| **a == receives()).count(), 1);
    lanes.forget_session(SERVER);
    assert!(lanes.waiting.is_empty());
    assert_eq!(lanes.ask(sends(), USER), Ok(Outcome::Wait), "nobody is there any more");
}
