//! Hosts that break the contract: they lose their session, nobody else loses anything.

use super::fake_host::{Control, FakeHost};
use super::{daemon, settle};
use std::net::SocketAddr;
use toe_abi::attach::{FenceReason, Request};
use toe_abi::region::{
    CMD_ENTRIES, CPL_ENTRIES, FENCED, QUEUE_SET_STRIDE, QueueSetLayout, RCV_ENTRIES, SND_ENTRIES,
};
use toe_abi::register::HostRegisters;

/// A small generator with a seed, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn a_fenced_host_is_told_why_and_cut_off() {
    let mut daemon = daemon();
    let host = FakeHost::attach(&mut daemon);
    let base = host.layout.queue_set(0);
    // An entry of a type that does not exist, with the epoch bit of the first lap.
    host.region.write(base + QueueSetLayout::CMD, &0x1ffu64.to_le_bytes()).expect("in the region");
    settle(&mut daemon);
    assert!(host.control.is_closed());
    let reason = host.region.read_u32(FENCED).expect("in the region");
    assert_eq!(reason, FenceReason::UnknownEntryType as u32);
    assert_eq!(daemon.whole_status().counters["fence_unknown_entry_type"], 1);
    assert!(daemon.is_unused());
}

#[test]
fn a_head_that_cannot_be_is_noticed_when_it_matters() {
    let mut daemon = daemon();
    let mut host = FakeHost::attach(&mut daemon);
    let base = host.layout.queue_set(0);
    let register = base + QueueSetLayout::HOST_REGISTERS + HostRegisters::CPL_HEAD;
    host.region.write_u32(register, 0x8000_0000).expect("in the region");
    // Refused connections, each with its answer, until the queue seems full.
    let remote = SocketAddr::from(([203, 0, 113, 1], 1));
    for token in 0..CPL_ENTRIES + 10 {
        let args = toe_abi::command::ConnectArgs { remote: remote.into(), ..Default::default() };
        if host.queue.push_connect(token, &args).is_err() {
            settle(&mut daemon);
            if host.control.is_closed() {
                break;
            }
            host.queue.push_connect(token, &args).expect("room");
        }
    }
    settle(&mut daemon);
    assert!(host.control.is_closed());
    let reason = host.region.read_u32(FENCED).expect("in the region");
    assert!(
        [FenceReason::BadHead as u32, FenceReason::UnknownHandle as u32, FenceReason::BadArgument as u32]
            .contains(&reason),
        "{reason}"
    );
}

/// Entries in the three rings that a host writes.
const ENTRIES: u64 = (CMD_ENTRIES + SND_ENTRIES + RCV_ENTRIES) as u64;

/// How many hostile sessions, each of which fills its rings once. `TOE_HOSTILE_ROUNDS` sets the number of entries; the
/// acceptance run has ten million.
fn sessions() -> u64 {
    let entries = std::env::var("TOE_HOSTILE_ROUNDS").ok().and_then(|n| n.parse::<u64>().ok());
    entries.map_or(300, |entries| entries.div_ceil(ENTRIES))
}

/// Entries that are nearly right: real types, small ids, any argument.
fn nearly_right(random: &mut Random) -> (u64, u64) {
    let kind = [0x01u64, 0x02, 0x03, 0x04, 0x05, 0x07, 0x08, 0x09, 0x21, 0x31];
    let word0 = kind[random.next() as usize % kind.len()] | (1 << 8) | ((random.next() & 0xf) << 32);
    (word0, random.next() >> (random.next() % 64))
}

#[test]
fn random_bytes_in_every_ring_and_register_hurt_nobody_else() {
    let mut daemon = daemon();
    let mut server = FakeHost::attach(&mut daemon);
    let mut client = FakeHost::attach(&mut daemon);
    let addr = SocketAddr::from(([127, 0, 0, 1], 8081));
    let (listener, _listening) = server.listen(&mut daemon, addr);
    let (flow, _end) = client.connect(&mut daemon, addr);
    let (accepted, _server_end) = server.accept(&mut daemon, listener);

    let mut random = Random(0x5eed);
    let mut fenced = 0;
    for round in 0..sessions() {
        let mut hostile = FakeHost::attach(&mut daemon);
        let _anchor = hostile.take_anchor(&mut daemon);
        let base = hostile.layout.queue_set(0);
        if round.is_multiple_of(2) {
            // Every byte of the queue set: rings and registers, its own and the engine's.
            let junk: Vec<u8> = (0..QUEUE_SET_STRIDE).map(|_| random.next() as u8).collect();
            hostile.region.write(base, &junk).expect("in the region");
        } else {
            let rings = [
                (QueueSetLayout::CMD, CMD_ENTRIES),
                (QueueSetLayout::SND, SND_ENTRIES),
                (QueueSetLayout::RCV, RCV_ENTRIES),
            ];
            for (ring, entries) in rings {
                for place in 0..u64::from(entries) {
                    let (word0, word1) = nearly_right(&mut random);
                    let at = base + ring + place * 16;
                    hostile.region.write(at + 8, &word1.to_le_bytes()).expect("in the region");
                    hostile.region.write(at, &word0.to_le_bytes()).expect("in the region");
                }
            }
        }
        let words = round.to_le_bytes();
        client.send(flow, &words);
        settle(&mut daemon);
        assert_eq!(server.receive(accepted), words, "round {round}");
        client.drain();
        client.completions.clear();
        fenced += u64::from(hostile.control.is_closed());
    }
    println!("{} hostile sessions, {} entries: {fenced} fenced", sessions(), sessions() * ENTRIES);
    assert!(fenced > sessions() / 6 * 5, "{fenced} of {} were fenced", sessions());
    settle(&mut daemon);
    let report = daemon.whole_status();
    assert_eq!(report.sessions.len(), 2, "only the good ones are left");
    let counted: u64 =
        report.counters.iter().filter(|(name, _)| name.starts_with("fence_")).map(|(_, n)| n).sum();
    assert_eq!(counted, fenced, "each fence is counted by its reason");
    drop((server, client));
    settle(&mut daemon);
    assert_eq!(daemon.whole_status().receive_memory_used, 0);
    assert!(daemon.sessions.closing().is_empty(), "every region is unmapped");
}

#[test]
fn random_control_messages_hurt_nobody_else() {
    let mut daemon = daemon();
    let mut host = FakeHost::attach(&mut daemon);
    let mut random = Random(0xfeed);
    for _ in 0..2000 {
        let control = Control::new(&mut daemon);
        for _ in 0..4 {
            let mut packet = zerocopy::IntoBytes::as_bytes(&Request::Hello { room: 0 }.encode()).to_vec();
            // The magic and the version are right, most of the time; Stop and StopWhenUnused are left out, as the
            // test runs as the engine's own user.
            let kind = [1u16, 2, 3, 4, 5, 6, 9, 0x101][random.next() as usize % 8];
            packet[6..8].copy_from_slice(&kind.to_le_bytes());
            for byte in &mut packet[8..] {
                *byte = random.next() as u8 & random.next() as u8 & random.next() as u8;
            }
            if random.next().is_multiple_of(8) {
                packet.truncate(random.next() as usize % 65);
            }
            let _ = control.send(&packet, &[]);
        }
        settle(&mut daemon);
    }
    let (_listener, _end) = host.listen(&mut daemon, SocketAddr::from(([127, 0, 0, 1], 8081)));
    assert_eq!(daemon.whole_status().sessions.len(), 1);
}
