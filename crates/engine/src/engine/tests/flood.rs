//! Floods of what anybody may send, and the connections of others beside them.

use super::world::{A, B, World, addr, pattern};
use crate::Counter;
use toe_abi::errno::Errno;
use toe_base::PortId;
use toe_wire::eth::{EthRepr, EtherType};
use toe_wire::ipv4::{Ipv4Repr, Protocol};
use toe_wire::link::{MacAddr, RxOffload};
use toe_wire::tcp::{TcpFlags, TcpOptions, TcpRepr, Timestamps};

const PORT: PortId = PortId(0);
const BELIEVED: RxOffload = RxOffload { checksum_ok: true, coalesced_mss: None };

/// A segment to B, from a host that is not A.
#[derive(Clone, Copy)]
struct Stray {
    from: [u8; 4],
    src_port: u16,
    dst_port: u16,
    flags: TcpFlags,
    seq: u32,
    ack: Option<u32>,
    options: TcpOptions,
}

impl Stray {
    fn syn(number: u32) -> Stray {
        let [_, _, c, d] = number.to_be_bytes();
        Stray {
            from: [10, 0, 0, 3],
            src_port: 1024 + u16::from_be_bytes([c, d]) % 60_000,
            dst_port: 80,
            flags: TcpFlags::SYN,
            seq: number.wrapping_mul(0x9e37_79b9),
            ack: None,
            options: TcpOptions { mss: Some(1460), ..TcpOptions::default() },
        }
    }

    fn frame(&self) -> Vec<u8> {
        let header = TcpRepr {
            src_port: self.src_port,
            dst_port: self.dst_port,
            seq: toe_base::SeqNum::new(self.seq),
            ack: self.ack.map(toe_base::SeqNum::new),
            flags: self.flags,
            window: toe_base::window::UnscaledWindow(5000),
            urgent: 0,
            options: self.options,
        };
        let mut frame = vec![0; 34 + header.header_len()];
        let total_len = (frame.len() - 14) as u16;
        let dst = MacAddr([2, 0, 0, 0, 0, 2]);
        EthRepr { dst, src: MacAddr([2, 0, 0, 0, 0, 3]), ethertype: EtherType::Ipv4 }.emit(&mut frame);
        let ip = Ipv4Repr {
            src: self.from.into(),
            dst: [10, 0, 0, 2].into(),
            protocol: Protocol::Tcp,
            ttl: 64,
            traffic_class: 0,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            total_len,
        };
        ip.emit(&mut frame[14..]);
        header.emit(&mut frame[34..]);
        frame
    }
}

/// B gets the segment; what it sends at once comes back.
fn stray(world: &mut World, segment: &Stray) -> Vec<TcpRepr> {
    let (now, side) = (world.now, &mut world.sides[B]);
    side.engine.handle_frame(now, PORT, &segment.frame(), BELIEVED, &mut side.memory);
    let to: std::net::Ipv4Addr = segment.from.into();
    sent_by_b(world).into_iter().filter(|(dst, _)| *dst == to).map(|(_, header)| header).collect()
}

fn sent_by_b(world: &mut World) -> Vec<(std::net::Ipv4Addr, TcpRepr)> {
    let (now, side) = (world.now, &mut world.sides[B]);
    while side.engine.poll_transmit(now, PORT, &mut side.outbox, &mut side.memory, 256) > 0 {}
    let frames = core::mem::take(&mut side.outbox.sent);
    let parsed = frames.iter().filter_map(|(frame, _)| {
        let (ip, transport) = Ipv4Repr::parse(&frame[14..]).ok()?;
        let (header, _) = TcpRepr::parse(transport).ok().filter(|_| ip.protocol == Protocol::Tcp)?;
        Some((ip.dst, header))
    });
    parsed.collect()
}

/// B listens, and so many SYNs have come whose senders will never answer.
fn flooded(count: u32) -> World {
    let mut world = World::new();
    let now = world.now;
    world.sides[B].listen(now, addr(B, 80)).expect("listens");
    for number in 0..count {
        stray(&mut world, &Stray::syn(number));
    }
    world
}

#[test]
fn a_flood_takes_no_more_records_than_the_backlog() {
    let mut world = flooded(50_000);
    let engine = world.sides[B].engine.view();
    assert!(engine.totals().flows <= 128, "{} records", engine.totals().flows);
    engine.audit().expect("counts agree");
    assert!(engine.counter(Counter::CookiesSent) > 49_000);
    assert_eq!(engine.counter(Counter::DropFlowTableFull), 0);
    world.run_ms(120_000);
    assert_eq!(world.sides[B].engine.view().totals().flows, 0, "they time out");
    world.sides[B].engine.view().audit().expect("counts agree");
}

#[test]
fn connections_are_made_beside_a_flood_and_carry_what_was_agreed_on() {
    let mut world = flooded(1_000);
    let conns = world.connected();
    assert_eq!(world.sides[B].engine.view().counter(Counter::CookiesGood), 1);
    let (mine, theirs) = (report(&world, A), report(&world, B));
    assert!(theirs.timestamps && theirs.sack && theirs.wscale.is_some(), "{theirs:?}");
    assert_eq!((mine.mss, mine.wscale, mine.sack), (theirs.mss, theirs.wscale, theirs.sack));
    let data = pattern(300_000, 1);
    assert!(world.transfer(A, conns, &data, 60_000) && world.transfer(B, conns, &data, 60_000));
    let srtt = report(&world, B).srtt_us;
    assert!((100..5_000).contains(&srtt), "the cookie's own time is no measurement: {srtt}");
    world.sides[B].engine.view().audit().expect("counts agree");
}

fn report(world: &World, side: usize) -> toe_abi::report::TcpReport {
    let sockets = world.sides[side].engine.view().sockets(world.now);
    let open = sockets.into_iter().filter(|socket| socket.state == "ESTAB");
    open.filter_map(|socket| socket.tcp).next().expect("an open connection")
}

#[test]
fn a_peer_without_timestamps_gets_a_plain_connection() {
    let mut world = flooded(200);
    let syn = Stray {
        options: TcpOptions { mss: Some(1300), sack_permitted: true, ..TcpOptions::default() },
        ..Stray::syn(70_001)
    };
    let [answer] = stray(&mut world, &syn)[..] else { panic!("a SYN-ACK") };
    assert_eq!(answer.flags, TcpFlags::SYN | TcpFlags::ACK);
    assert_eq!((answer.options.sack_permitted, answer.options.window_scale), (false, None));
    let ack = ack_of(&syn, &answer);
    world.run_ms(59_000);
    stray(&mut world, &ack);
    let open = report(&world, B);
    assert_eq!((open.mss, open.sack, open.timestamps, open.wscale), (1300, false, false, None));
}

#[test]
fn what_is_no_cookie_is_refused() {
    let mut world = flooded(200);
    let timestamps = Some(Timestamps { value: 1, echo: 0x1234_5678 });
    for number in 0..1_000u32 {
        let ack = Stray {
            flags: TcpFlags::ACK,
            ack: Some(number.wrapping_mul(0x85eb_ca6b)),
            options: TcpOptions { timestamps, ..TcpOptions::default() },
            ..Stray::syn(80_000 + number)
        };
        let answers = stray(&mut world, &ack);
        assert!(answers.iter().all(|answer| answer.flags.rst()), "{answers:?}");
    }
    let engine = world.sides[B].engine.view();
    assert_eq!((engine.counter(Counter::CookiesBad), engine.counter(Counter::CookiesGood)), (1_000, 0));
    assert!(engine.totals().flows <= 128);
}

#[test]
fn a_cookie_is_believed_only_while_there_was_a_reason_to_send_one() {
    let mut world = flooded(200);
    let syn = Stray::syn(70_001);
    let [answer] = stray(&mut world, &syn)[..] else { panic!("a SYN-ACK") };
    let ack = ack_of(&syn, &answer);
    world.run_ms(121_000);
    let [reset] = stray(&mut world, &ack)[..] else { panic!("a reset") };
    assert!(reset.flags.rst());
    assert_eq!(world.sides[B].engine.view().counter(Counter::CookiesBad), 0, "it was not even looked at");
}

/// The ACK of `answer`.
fn ack_of(syn: &Stray, answer: &TcpRepr) -> Stray {
    Stray {
        flags: TcpFlags::ACK,
        seq: syn.seq.wrapping_add(1),
        ack: Some(answer.seq.raw().wrapping_add(1)),
        options: TcpOptions::default(),
        ..*syn
    }
}

/// Found by toe-sim, seeds 55366 and 23834: the program got bytes twice.
#[test]
fn a_cookie_makes_one_connection() {
    let mut world = flooded(200);
    let syn = Stray::syn(70_001);
    let [answer] = stray(&mut world, &syn)[..] else { panic!("a SYN-ACK") };
    let ack = ack_of(&syn, &answer);
    stray(&mut world, &ack);
    stray(&mut world, &Stray { flags: TcpFlags::RST | TcpFlags::ACK, ..ack });
    let before = world.sides[B].engine.view().totals().flows;
    let [reset] = stray(&mut world, &ack)[..] else { panic!("a reset") };
    assert!(reset.flags.rst(), "a copy of the ACK, when the connection is no more");
    assert_eq!(world.sides[B].engine.view().totals().flows, before);
    assert_eq!(world.sides[B].engine.view().counter(Counter::CookiesGood), 1);
}

#[test]
fn the_answer_to_a_cookie_counts_though_the_syn_came_again_and_has_a_record() {
    let mut world = flooded(200);
    let syn = Stray::syn(70_001);
    let [cookie] = stray(&mut world, &syn)[..] else { panic!("a SYN-ACK") };
    // The flood's own SYNs are given up, and there is room.
    world.run_ms(70_000);
    sent_by_b(&mut world);
    let [other] = stray(&mut world, &syn)[..] else { panic!("a SYN-ACK") };
    assert_ne!(cookie.seq, other.seq, "of a record");
    assert!(stray(&mut world, &ack_of(&syn, &cookie)).is_empty(), "no reset");
    report(&world, B);
    world.sides[B].engine.view().audit().expect("counts agree");
}

/// Found by toe-sim, seeds 134739 and 131238.
/// A copy of a SYN that was answered with a SYN cookie comes when there is room again: its bytes must not be the program's twice, nor
/// the answer that is on its way meet another connection.
#[test]
fn the_copy_of_a_syn_that_had_a_cookie_for_an_answer_does_not_open_early() {
    let mut world = super::fast_open::acquainted();
    for number in 0..200 {
        stray(&mut world, &Stray::syn(number));
    }
    let cookies = |w: &World| w.sides[B].engine.view().counter(Counter::CookiesSent);
    let before = (cookies(&world), world.log.len());
    let (now, data) = (world.now, pattern(3000, 5));
    let a = world.sides[A].connect(now, addr(B, 80)).expect("connects");
    world.sides[A].send(now, a, &data);
    assert!(world.run_until(100, |w| cookies(w) > before.0));
    for number in 0..200 {
        let syn = Stray::syn(number);
        stray(&mut world, &Stray { flags: TcpFlags::RST, seq: syn.seq.wrapping_add(1), ..syn });
    }
    let copy = world.log[before.1..].iter().find(|(_, from, _)| *from == A).expect("its SYN").2.clone();
    let (now, side) = (world.now, &mut world.sides[B]);
    side.engine.handle_frame(now, PORT, &copy, BELIEVED, &mut side.memory);
    let early = world.sides[B].engine.view().counter(Counter::FastOpenReceived);
    assert_eq!(early, 0, "it waits for the handshake");
    let is_whole = |w: &World| w.sides[B].conns.get(1).is_some_and(|conn| conn.received == data);
    assert!(world.run_until(5_000, is_whole));
    world.run_ms(2_000);
    assert_eq!((world.sides[B].conns.len(), world.sides[A].conns[a].errno), (2, None));
}

#[test]
fn a_cookie_that_finds_no_place_is_not_answered_with_a_reset_and_may_come_again() {
    let mut world = World::new();
    let now = world.now;
    world.sides[B].listen_for(now, addr(B, 80), 0).expect("listens");
    world.sides[B].deaf = true;
    for number in 0..200 {
        stray(&mut world, &Stray::syn(number));
    }
    let syns = [Stray::syn(70_001), Stray::syn(70_002)];
    let answers = syns.map(|syn| stray(&mut world, &syn)[0]);
    // One takes the only place of the backlog, and all others that may be half open are.
    stray(&mut world, &ack_of(&syns[0], &answers[0]));
    let ack = ack_of(&syns[1], &answers[1]);
    assert!(stray(&mut world, &ack).is_empty(), "turned away");
    let later = Stray { seq: ack.seq.wrapping_add(100), flags: ack.flags | TcpFlags::FIN, ..ack };
    assert!(stray(&mut world, &later).is_empty(), "what follows is not refused");
    world.sides[B].deaf = false;
    world.run_ms(10);
    let keepalive = Stray { seq: syns[1].seq, ..ack };
    stray(&mut world, &keepalive);
    world.run_ms(10);
    assert_eq!(world.sides[B].conns.len(), 2, "of a silent peer that is all that comes again");
    world.sides[B].engine.view().audit().expect("counts agree");
}

/// The ACK that brings the cookie back is still under way when what was sent behind it comes. Found by toe-sim, seed
/// 973171.
#[test]
fn what_overtakes_the_answer_to_a_cookie_is_not_refused() {
    let mut world = flooded(200);
    let syn = Stray::syn(70_001);
    let [answer] = stray(&mut world, &syn)[..] else { panic!("a SYN-ACK") };
    let ack = ack_of(&syn, &answer);
    let behind = Stray { seq: ack.seq.wrapping_add(2456), flags: ack.flags | TcpFlags::FIN, ..ack };
    assert!(stray(&mut world, &behind).is_empty(), "no reset");
    assert!(stray(&mut world, &ack).is_empty(), "nor for the ACK itself");
    report(&world, B);
    assert_eq!(world.sides[B].engine.view().counter(Counter::CookiesGood), 1);
}

/// It has nothing to say of what it has not heard: an empty ACK that brings another number is of another connection.
#[test]
fn an_empty_ack_that_brings_no_cookie_is_refused() {
    let mut world = flooded(200);
    let syn = Stray::syn(70_001);
    let [answer] = stray(&mut world, &syn)[..] else { panic!("a SYN-ACK") };
    let ack = ack_of(&syn, &answer);
    let other = Stray { ack: ack.ack.map(|number| number.wrapping_add(1)), ..ack };
    let [reset] = stray(&mut world, &other)[..] else { panic!("an answer") };
    assert!(reset.flags.rst());
    assert_eq!(Some(reset.seq.raw()), other.ack);
    assert!(stray(&mut world, &ack).is_empty(), "the right one opens it all the same");
    assert_eq!(world.sides[B].engine.view().counter(Counter::CookiesGood), 1);
}

#[test]
fn resets_for_strangers_are_limited() {
    let mut world = World::new();
    let mut resets = 0;
    for number in 0..20_000 {
        let answers = stray(&mut world, &Stray { dst_port: 81, ..Stray::syn(number) });
        resets += answers.iter().filter(|answer| answer.flags.rst()).count();
    }
    let engine = world.sides[B].engine.view();
    assert!((2_000..6_000).contains(&resets), "{resets} in one second");
    assert_eq!(engine.counter(Counter::ResetsHeldBack), 20_000 - resets as u64);
    world.now = world.now.after_us(1_000_000);
    let again = stray(&mut world, &Stray { dst_port: 81, ..Stray::syn(1) });
    assert!(again.len() == 1 && again[0].flags.rst());
}

#[test]
fn a_full_accept_queue_leaves_handshakes_incomplete_until_the_program_accepts() {
    let mut world = World::new();
    let now = world.now;
    world.sides[B].listen_for(now, addr(B, 80), 2).expect("listens");
    world.sides[B].deaf = true;
    let connects = |world: &mut World| {
        let now = world.now;
        world.sides[A].connect(now, addr(B, 80)).expect("starts")
    };
    let first: Vec<usize> = (0..3).map(|_| connects(&mut world)).collect();
    assert!(world.run_until(1_000, |w| first.iter().all(|&conn| w.sides[A].conns[conn].established)));
    let late = connects(&mut world);
    world.run_ms(500);
    assert!(!world.sides[A].conns[late].established, "its SYN was dropped");
    assert_eq!(world.sides[A].conns[late].errno, None);
    assert!(world.sides[B].engine.view().counter(Counter::DropAcceptQueueFull) > 0);
    world.sides[B].engine.view().audit().expect("counts agree");
    world.sides[B].deaf = false;
    assert!(world.run_until(5_000, |w| w.sides[A].conns[late].established), "sent again, it is welcome");
    assert_eq!(world.sides[A].conns[late].errno, None::<Errno>);
}

/// Found by toe-sim, seed 2487: who had no luck at any time-out was reset.
#[test]
fn a_place_in_the_backlog_goes_to_who_has_waited_longest_at_once() {
    let mut world = World::new();
    let now = world.now;
    world.sides[B].listen_for(now, addr(B, 80), 0).expect("listens");
    world.sides[B].deaf = true;
    // All their SYNs are there before the first of them is complete.
    let conns: Vec<usize> =
        (0..20).map(|_| world.sides[A].connect(now, addr(B, 80)).expect("starts")).collect();
    world.run_ms(100);
    let accepted = |w: &World| w.sides[B].conns.len();
    assert_eq!(accepted(&world), 0);
    assert!(conns.iter().all(|&conn| world.sides[A].conns[conn].established), "as they believe");
    world.sides[B].deaf = false;
    assert!(world.run_until(100, |w| accepted(w) == 20), "{} in 100 ms", accepted(&world));
    world.sides[B].engine.view().audit().expect("counts agree");
}

#[test]
fn guesses_at_a_connection_are_answered_once_in_a_while() {
    let mut world = World::new();
    let (a, _) = world.connected();
    world.run_ms(1_000);
    let key = world.sides[A].engine.view().sockets(world.now)[0].local;
    let before = world.sides[B].engine.view().counter(Counter::ChallengeAcks);
    for number in 0..200u32 {
        let rst = Stray {
            from: [10, 0, 0, 1],
            src_port: key.port(),
            flags: TcpFlags::RST,
            seq: report(&world, B).rcv_wnd / 2 + number * 1_000,
            ..Stray::syn(0)
        };
        // In the window or not, none is exact.
        let side = &mut world.sides[B];
        let mut frame = rst.frame();
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        side.engine.handle_frame(world.now, PORT, &frame, BELIEVED, &mut side.memory);
    }
    let said = world.sides[B].engine.view().counter(Counter::ChallengeAcks) - before;
    assert!(said <= 1, "{said} in a moment");
    assert!(world.sides[A].conns[a].errno.is_none() && world.run_until(1_000, |_| true));
}
