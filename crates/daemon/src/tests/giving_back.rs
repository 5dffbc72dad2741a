//! A host that holds the lock of its region's file while pages of the region are to go back to the system.

use super::fake_host::{Control, FakeHost};
use super::porter::hold_up;
use super::stuck_page::{Holding, PATIENCE, StuckPage};
use super::{daemon_with, settle, until};
use crate::daemon::Daemon;
use crate::porter::ask::Matter;
use crate::porter::pages::{GivenBack, Pages};
use crate::session::Slot;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use toe_abi::attach::{FenceReason, Reply, Request};
use toe_base::{FlowId, SessionId};
use toe_ring::Region;

const USER: u32 = 4242;

/// A host in the middle of a `write` to its region.
fn hold(host: &FakeHost) -> Option<Holding> {
    let memory = host.memory.try_clone().expect("a copy");
    Holding::new(move |page| {
        // Into the send part, where nobody looks.
        let at = rustix::fs::fstat(&memory).expect("a size").st_size as u64 - 1;
        rustix::io::pwrite(&memory, page.octet(), at).expect("written");
    })
}

/// Whether a user's thread waits for something that nothing interrupts.
fn stands_still() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").expect("tasks");
    let stats = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    stats.into_iter().any(|stat| stat.contains("(toe-user) D "))
}

fn attach_user(daemon: &mut Daemon, uid: u32) -> FakeHost {
    let control = Control::of_user(daemon, uid);
    FakeHost::attach_by(daemon, control)
}

fn session_of(daemon: &Daemon, uid: u32) -> SessionId {
    let sessions = daemon.sessions.iter();
    sessions.filter(|(_, session)| session.peer.uid == uid).map(|(id, _)| id).next().expect("attached")
}

fn memory_of(daemon: &Daemon, id: SessionId) -> u64 {
    daemon.engine.session_view(id).receive_memory_used
}

/// A connection between two hosts: both ends of it, and what must stay open.
fn connect(
    daemon: &mut Daemon,
    server: &mut FakeHost,
    client: &mut FakeHost,
    port: u16,
) -> ((FlowId, FlowId), [OwnedFd; 3]) {
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    let (listener, listening) = server.listen(daemon, at);
    let (flow, end) = client.connect(daemon, at);
    let (accepted, server_end) = server.accept(daemon, listener);
    ((flow, accepted), [listening, end, server_end])
}

/// Has the host receive something, which it has read; its memory is not given back yet.
fn receive_something(daemon: &mut Daemon, server: &mut FakeHost, host: &mut FakeHost) -> [OwnedFd; 3] {
    let ((flow, accepted), ends) = connect(daemon, server, host, 8080);
    server.send(accepted, &[7; 10_000]);
    let mut got = 0;
    until_with(daemon, "octets", |_| {
        got += host.receive(flow).len();
        got == 10_000
    });
    ends
}

/// As [`until`], with the engine in hand.
fn until_with(daemon: &mut Daemon, what: &str, mut is_so: impl FnMut(&Daemon) -> bool) {
    let began = std::time::Instant::now();
    while !is_so(daemon) {
        super::come_to_rest(daemon);
        std::thread::yield_now();
        assert!(began.elapsed() < 3 * PATIENCE, "in vain: {what}");
    }
}

fn is_able() -> bool {
    let is_able = rustix::process::geteuid().is_root() && StuckPage::new().is_some();
    if !is_able {
        println!("not tried: only root can be several users, and decide about its page faults (userfaultfd)");
    }
    is_able
}

#[test]
fn a_host_that_holds_its_regions_lock_holds_up_its_user_alone() {
    if !is_able() {
        return;
    }
    let mut daemon = daemon_with("toed --allow-all --receive-memory-mib 16 --send-memory-mib 16");
    let mut server = FakeHost::attach(&mut daemon);
    let mut client = FakeHost::attach(&mut daemon);
    let mut hostile = attach_user(&mut daemon, USER);
    let id = session_of(&daemon, USER);
    let (flows, _ends) = connect(&mut daemon, &mut server, &mut client, 8081);
    let _hostile_ends = receive_something(&mut daemon, &mut server, &mut hostile);
    let holding = hold(&hostile).expect("tried before");
    assert!(memory_of(&daemon, id) > 0, "not given back yet");
    until(&mut daemon, "his thread waits for the lock", stands_still);
    // Others go on: their octets move, and somebody comes, for whom memory is mapped.
    for _ in 0..10 {
        client.send(flows.0, &[1; 5000]);
        let mut got = 0;
        until_with(&mut daemon, "octets", |_| {
            got += server.receive(flows.1).len();
            got == 5000
        });
    }
    let newcomer = Control::of_user(&mut daemon, USER + 1);
    let (reply, _) = newcomer.ask_meanwhile(&mut daemon, Request::Hello { room: 0 });
    assert!(matches!(reply, Reply::Welcome { .. }), "{reply:?}");
    assert!(memory_of(&daemon, id) > 0, "what may go at any moment is not handed out, and is his");
    holding.let_go();
    until_with(&mut daemon, "the memory is free", |daemon| memory_of(daemon, id) == 0);
    settle(&mut daemon);
    daemon.engine.audit_memory().expect("sound");
}

#[test]
fn a_report_about_a_region_that_is_gone_does_not_concern_the_next_one() {
    if !is_able() {
        return;
    }
    let mut daemon = daemon_with("toed --allow-all --receive-memory-mib 16 --send-memory-mib 16");
    let mut server = FakeHost::attach(&mut daemon);
    let mut host = attach_user(&mut daemon, USER);
    let id = session_of(&daemon, USER);
    let ends = receive_something(&mut daemon, &mut server, &mut host);
    let holding = hold(&host).expect("tried before");
    until(&mut daemon, "his thread waits for the lock", stands_still);
    // As if the number had been another's, with the same range.
    let (others, _memory) = Region::create(host.layout.len()).expect("a region");
    let len = memory_of(&daemon, id);
    let pages = Pages { session: id, region: others, offset: host.layout.receive_offset(), len: len as u32 };
    let report = Matter::GivenBack(vec![GivenBack { pages, is_gone: true }]);
    let now = daemon.clock.now();
    daemon.attend(now, report);
    assert_eq!(memory_of(&daemon, id), len);
    // It breaks the contract and is gone, however long its thread waits.
    daemon.fence(now, id, FenceReason::BadArgument);
    drop(ends);
    until_with(&mut daemon, "its number is free", |daemon| {
        matches!(daemon.sessions.slot(id), Some(Slot::Free))
    });
    let _next = attach_user(&mut daemon, USER + 1);
    assert_eq!(session_of(&daemon, USER + 1), id, "used again");
    holding.let_go();
    settle(&mut daemon);
    assert_eq!(memory_of(&daemon, id), 0);
    daemon.engine.audit_memory().expect("sound");
    daemon.engine.audit_users().expect("sound");
}

/// How often the memory is mapped in this process.
fn mappings_of(memory: &OwnedFd) -> usize {
    let inode = rustix::fs::fstat(memory).expect("a file").st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a list");
    let is_it = |line: &&str| line.contains("toe-region") && line.split_whitespace().nth(4) == Some(&*inode);
    maps.lines().filter(is_it).count()
}

#[test]
fn a_session_that_is_gone_is_unmapped_by_its_users_thread() {
    let mut daemon = daemon_with("toed --receive-memory-mib 16 --send-memory-mib 16");
    let host = FakeHost::attach(&mut daemon);
    let id = daemon.sessions.live()[0];
    let mut lingering = hold_up(&mut daemon, &host.control);
    assert_eq!(mappings_of(&host.memory), 2, "the daemon's and the host's");
    let now = daemon.clock.now();
    daemon.fence(now, id, FenceReason::BadArgument);
    until_with(&mut daemon, "its number is free", |daemon| {
        matches!(daemon.sessions.slot(id), Some(Slot::Free))
    });
    assert_eq!(mappings_of(&host.memory), 2, "not by the engine's thread");
    lingering.release();
    until_with(&mut daemon, "it is unmapped", |_| mappings_of(&host.memory) == 1);
    settle(&mut daemon);
}
