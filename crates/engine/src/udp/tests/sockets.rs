//! Whose a datagram is.

use crate::udp::Presented;
use crate::udp::sockets::{Gone, Receiver, Sockets};
use crate::work::Delivered;
use toe_abi::report::UdpReport;
use toe_base::{Addr, Endpoint, NetNs, SessionId};

const ONE: SessionId = SessionId(1);
const OTHER: SessionId = SessionId(2);

fn at(last: u8, port: u16) -> Endpoint {
    Endpoint::new([10, 0, 0, last], port)
}

fn any(port: u16) -> Endpoint {
    Endpoint { addr: Addr::UNSPECIFIED_V4, port }
}

fn presented(local: Endpoint, identity: u64) -> Presented {
    Presented {
        local,
        peer: None,
        v6_only: false,
        identity,
        netns: NetNs(0),
        shares_port: false,
        receive_buffer: 212_992,
    }
}

#[test]
fn a_datagram_is_whose_name_it_is_for() {
    let mut sockets = Sockets::default();
    let everywhere = sockets.open(ONE, &presented(any(53), 1), 0, ());
    assert_eq!(sockets.find(at(2, 53), at(9, 1)).0, Receiver::One(everywhere));
    assert_eq!(sockets.find(at(2, 54), at(9, 1)).0, Receiver::Nobody, "another port");
    let six = Endpoint { addr: Addr::LOCALHOST_V6, port: 53 };
    assert_eq!(sockets.find(six, six).0, Receiver::Nobody, "the other family");
    let here = sockets.open(ONE, &presented(at(2, 80), 2), 0, ());
    assert_eq!(sockets.find(at(2, 80), at(9, 1)).0, Receiver::One(here));
    assert_eq!(sockets.find(at(3, 80), at(9, 1)).0, Receiver::Nobody, "another address");
}

#[test]
fn a_dual_socket_hears_both_families() {
    let mut sockets = Sockets::default();
    let dual = presented(Endpoint { addr: Addr::UNSPECIFIED_V6, port: 53 }, 1);
    let id = sockets.open(ONE, &dual, 0, ());
    assert_eq!(sockets.find(at(2, 53), at(9, 1)).0, Receiver::One(id));
    sockets.update(&Presented { v6_only: true, ..dual }, None);
    assert_eq!(sockets.find(at(2, 53), at(9, 1)).0, Receiver::Nobody);
}

/// Anybody may open many at a port where somebody else hears in the other family: 1706 of them made each of his datagrams cost six times what it
/// does alone.
#[test]
fn what_cannot_hear_a_datagram_is_not_looked_at_for_it() {
    let mut sockets = Sockets::default();
    let everywhere = |addr| Endpoint { addr, port: 53 };
    let six = Endpoint { addr: Addr::LOCALHOST_V6, port: 53 };
    let v6_only =
        |identity| Presented { v6_only: true, ..presented(everywhere(Addr::UNSPECIFIED_V6), identity) };
    let hearing = |sockets: &Sockets<()>, to| sockets.hearing(to, at(9, 1)).collect::<Vec<_>>();
    for identity in 100..400 {
        sockets.open(OTHER, &v6_only(identity), 0, ());
        sockets.open(OTHER, &presented(six, 1000 + identity), 0, ());
        // What is connected elsewhere, and what has another address.
        let elsewhere = presented(any(53), 2000 + identity);
        sockets.open(OTHER, &elsewhere, 0, ());
        sockets.update(&elsewhere, Some(at(7, 7)));
        sockets.open(OTHER, &presented(at(5, 53), 3000 + identity), 0, ());
    }
    assert_eq!(hearing(&sockets, at(2, 53)), []);
    let own = sockets.open(ONE, &presented(any(53), 1), 0, ());
    assert_eq!(hearing(&sockets, at(2, 53)), [1]);
    assert_eq!(sockets.find(at(2, 53), at(9, 1)).0, Receiver::One(own));
    assert_eq!(hearing(&sockets, six).len(), 600, "those of both names");
    // One that becomes dual is found for IPv4, too, and for IPv6 once.
    sockets.update(&Presented { v6_only: false, ..v6_only(100) }, None);
    assert_eq!(hearing(&sockets, at(2, 53)), [1, 100]);
    assert_eq!(sockets.find(at(2, 53), at(9, 1)).0, Receiver::Several);
    assert_eq!(hearing(&sockets, six).len(), 600);
    sockets.update(&v6_only(100), None);
    assert_eq!(sockets.find(at(2, 53), at(9, 1)).0, Receiver::One(own));
    let all: Vec<u64> = std::iter::successors(sockets.after(None), |one| sockets.after(Some(one.identity)))
        .map(|one| one.identity)
        .collect();
    all.into_iter().for_each(|identity| _ = sockets.gone(identity));
    assert!(
        sockets.is_empty() && hearing(&sockets, six).is_empty() && hearing(&sockets, at(5, 53)).is_empty()
    );
}

/// A datagram for no address in particular is heard once by who hears it.
#[test]
fn who_hears_by_two_names_hears_once() {
    let mut sockets = Sockets::default();
    let six = Endpoint { addr: Addr::UNSPECIFIED_V6, port: 53 };
    let four = sockets.open(ONE, &presented(any(53), 1), 0, ());
    assert_eq!(sockets.find(any(53), at(9, 1)).0, Receiver::One(four));
    let dual = sockets.open(ONE, &presented(six, 2), 0, ());
    assert_eq!(sockets.find(six, six).0, Receiver::One(dual));
    assert_eq!(sockets.find(any(53), at(9, 1)).0, Receiver::Several);
}

#[test]
fn a_connected_socket_hears_its_peer_alone() {
    let mut sockets = Sockets::default();
    let id = sockets.open(ONE, &presented(any(53), 1), 0, ());
    sockets.update(&presented(any(53), 1), Some(at(9, 7)));
    assert_eq!(sockets.find(at(2, 53), at(9, 7)).0, Receiver::One(id));
    assert_eq!(sockets.find(at(2, 53), at(9, 8)).0, Receiver::Nobody);
    assert_eq!(sockets.find(at(2, 53), at(8, 7)).0, Receiver::Nobody);
}

#[test]
fn what_several_have_is_the_kernels_to_give() {
    let mut sockets = Sockets::default();
    let (to, from) = (at(2, 53), at(9, 1));
    let first = sockets.open(ONE, &presented(any(53), 1), 0, ());
    // SO_REUSEPORT.
    let second = sockets.open(ONE, &presented(any(53), 2), 0, ());
    assert_eq!(sockets.find(to, from).0, Receiver::Several);
    assert_eq!(sockets.close(second), Some((0, Some(()))));
    assert_eq!(sockets.find(to, from).0, Receiver::One(first));
    // A child shows its parent's.
    let of_child = sockets.open(OTHER, &presented(any(53), 1), 0, ());
    assert_eq!(sockets.find(to, from).0, Receiver::Several);
    assert_eq!((sockets.end_of(ONE, 1), sockets.end_of(OTHER, 1)), (Some(first), Some(of_child)));
    assert_eq!(sockets.close(of_child), Some((0, None)), "the parent has it still");
    assert_eq!(sockets.find(to, from).0, Receiver::One(first));
}

#[test]
fn a_name_outlives_the_session_and_not_the_socket() {
    let mut sockets = Sockets::default();
    let (to, from) = (at(2, 53), at(9, 1));
    let id = sockets.open(ONE, &presented(any(53), 1), 0, ());
    sockets.open(ONE, &presented(any(54), 2), 0, ());
    assert_eq!(sockets.leave(ONE).ids.len(), 2);
    assert_eq!(sockets.find(to, from).0, Receiver::Several, "another process may have it");
    assert_eq!(sockets.sends(id, 1, 1), None);
    assert_eq!((sockets.gone(1), sockets.gone(1)), (Some(((), Gone::default())), None));
    assert_eq!(sockets.find(to, from).0, Receiver::Nobody);
    assert_eq!(sockets.len(), 1);
    assert_eq!(sockets.gone(2), Some(((), Gone::default())));
    assert!(sockets.is_empty());
}

#[test]
fn one_that_was_shared_is_not_told_past_the_kernel_again() {
    let mut sockets = Sockets::default();
    sockets.open(ONE, &presented(any(53), 1), 0, ());
    sockets.leave(ONE);
    let of_child = sockets.open(OTHER, &presented(any(53), 1), 0, ());
    assert_eq!(sockets.find(at(2, 53), at(9, 1)).0, Receiver::Several, "a third may have it");
    assert_eq!(sockets.close(of_child), Some((0, None)), "only the kernel knows when it is gone");
    assert_eq!(sockets.len(), 1);
}

#[test]
fn another_name_is_another_port() {
    let mut sockets = Sockets::default();
    let id = sockets.open(ONE, &presented(any(53), 1), 0, ());
    sockets.update(&presented(at(2, 54), 1), None);
    assert_eq!(sockets.find(at(2, 53), at(9, 1)).0, Receiver::Nobody);
    assert_eq!(sockets.find(at(2, 54), at(9, 1)).0, Receiver::One(id));
}

#[test]
fn what_a_socket_gets_and_sends_is_counted_with_it() {
    let mut sockets = Sockets::default();
    let id = sockets.open(ONE, &presented(any(53), 7), 0, ());
    sockets.open(ONE, &presented(any(54), 9), 0, ());
    let (to, from) = (at(2, 53), at(9, 1));
    assert_eq!(sockets.find(to, from), (Receiver::One(id), Some(7)));
    sockets.came(7, 1, 100, Delivered::ByKernel);
    sockets.came(7, 1, 1, Delivered::QueueFull);
    assert_eq!(sockets.find(at(2, 55), from), (Receiver::Nobody, None));
    assert_eq!(sockets.sends(id, 3, 30), Some((any(53), ())));
    sockets.send_failed(id, 1);
    let first = sockets.after(None).expect("one");
    let expected = UdpReport {
        rx_datagrams: 2,
        rx_bytes: 101,
        rx_by_kernel: 1,
        rx_drops: 1,
        tx_datagrams: 3,
        tx_bytes: 30,
        tx_drops: 1,
        shared: false,
    };
    assert_eq!((first.identity, &first.sessions[..], first.traffic), (7, &[ONE][..], expected));
    let second = sockets.after(Some(7)).expect("another");
    assert_eq!((second.identity, second.traffic), (9, UdpReport::default()));
    assert_eq!(sockets.after(Some(9)), None);
    // A child's process has it, too, and then it alone; and counts go on.
    let of_child = sockets.open(OTHER, &presented(any(53), 7), 0, ());
    let holders = |sockets: &Sockets<()>| sockets.after(None).map(|one| (one.sessions, one.traffic.shared));
    assert_eq!(holders(&sockets), Some((vec![ONE, OTHER], true)));
    sockets.leave(ONE);
    assert_eq!(holders(&sockets), Some((vec![OTHER], true)));
    sockets.sends(of_child, 1, 1);
    assert_eq!(sockets.after(None).map(|one| one.traffic.tx_datagrams), Some(4));
    assert_eq!(sockets.find(to, from), (Receiver::Several, Some(7)));
}
