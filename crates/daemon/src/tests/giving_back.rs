//! Hosts that try to hold up the engine by the files of their regions, while pages of those go back to the system.

use super::control_server::hold_up;
use super::fake_host::{Control, FakeHost};
use super::stuck_page::{Holding, PATIENCE, StuckPage};
use super::{daemon, daemon_with, settle, until};
use crate::control_server::ask::Matter;
use crate::control_server::pages::{GivenBack, Pages, Returned};
use crate::daemon::Daemon;
use crate::session::Slot;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use toe_abi::attach::{FenceReason, Reply, Request};
use toe_base::{Cred, FlowId, LaneId, SessionId};
use toe_ring::Region;
use zerocopy::IntoBytes;

const USER: u32 = 4242;

/// A host in the middle of a `write` to its region, of which only the file is there yet.
fn hold(memory: &OwnedFd) -> Option<Holding> {
    let memory = memory.try_clone().expect("a copy");
    Holding::new(move |page| {
        rustix::io::pwrite(&memory, page.byte(), 0).expect("written");
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
    daemon.engine.view().session(id).receive_memory_used
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
    until_with(daemon, "bytes", |_| {
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

/// What a host must not be able to do to memory that the engine has mapped, too.
fn is_settled(file: &OwnedFd) -> bool {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = rustix::fs::fallocate(file, punch, 0, 4096);
    let written = rustix::io::pwrite(file, &[1], 0);
    let refused = [Errno::PERM, Errno::BADF];
    punched.is_err_and(|errno| refused.contains(&errno))
        && written.is_err_and(|errno| refused.contains(&errno))
}

#[test]
fn a_host_that_holds_its_regions_lock_holds_up_its_user_alone() {
    if !is_able() {
        return;
    }
    let mut daemon = daemon_with("toed --allow-all --receive-memory-mib 16 --send-memory-mib 16");
    let mut server = FakeHost::attach(&mut daemon);
    let mut client = FakeHost::attach(&mut daemon);
    let (flows, _ends) = connect(&mut daemon, &mut server, &mut client, 8081);
    let hostile = Control::of_user(&mut daemon, USER);
    let (reply, fds) = hostile.ask_meanwhile(&mut daemon, Request::Hello { room: 0 });
    assert!(matches!(reply, Reply::Welcome { .. }), "{reply:?}");
    let holding = hold(&fds[0]).expect("tried before");
    hostile.send(Request::AddQueueSet.encode().as_bytes(), &[]).expect("sent");
    until(&mut daemon, "his thread waits for the lock", stands_still);
    // Others go on: their bytes move, and somebody comes, for whom memory is mapped.
    for _ in 0..10 {
        client.send(flows.0, &[1; 5000]);
        let mut got = 0;
        until_with(&mut daemon, "bytes", |_| {
            got += server.receive(flows.1).len();
            got == 5000
        });
    }
    let newcomer = Control::of_user(&mut daemon, USER + 1);
    let (reply, _) = newcomer.ask_meanwhile(&mut daemon, Request::Hello { room: 0 });
    assert!(matches!(reply, Reply::Welcome { .. }), "{reply:?}");
    holding.let_go();
    assert!(matches!(hostile.answer_meanwhile(&mut daemon).0, Reply::QueueSet { index: 0 }));
    assert!(fds[..2].iter().all(is_settled));
}

/// Holes that a host punched had the engine wait for him in a page fault.
#[test]
fn a_host_punches_no_holes_and_the_engine_gives_pages_back() {
    let mut daemon = daemon_with("toed --receive-memory-mib 16 --send-memory-mib 16");
    let mut server = FakeHost::attach(&mut daemon);
    let mut host = FakeHost::attach(&mut daemon);
    let [id] = daemon.sessions.live()[1..] else { panic!("two sessions") };
    assert!([&host.memory, &host.to_read].into_iter().all(is_settled));
    assert!(Region::map_for(&host.layout, [&host.memory, &host.to_read]).is_err(), "nor maps it once more");
    let _ends = receive_something(&mut daemon, &mut server, &mut host);
    let blocks = |host: &FakeHost| rustix::fs::fstat(&host.to_read).expect("a file").st_blocks;
    assert!(memory_of(&daemon, id) > 0 && blocks(&host) > 0, "not given back yet");
    until_with(&mut daemon, "the memory is free", |daemon| memory_of(daemon, id) == 0);
    assert_eq!(blocks(&host), 0, "and with the system");
    daemon.engine.view().audit().expect("sound");
}

/// A region whose host has not mapped it yet can have holes punched into it: the engine does not look there.
#[test]
fn a_region_is_not_touched_before_its_host_has_mapped_it() {
    let mut daemon = daemon();
    let control = Control::new(&mut daemon);
    let (reply, fds) = control.ask_meanwhile(&mut daemon, Request::Hello { room: 0 });
    let Reply::Welcome { session, .. } = reply else { panic!("{reply:?}") };
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&fds[0], punch, 0, 4096).expect("a hole");
    settle(&mut daemon);
    daemon.fence(daemon.timing.clock.now(), SessionId(session), FenceReason::BadArgument);
    settle(&mut daemon);
    assert_eq!(rustix::fs::fstat(&fds[0]).expect("a file").st_blocks, 0, "not a word was written");
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
    let mut lingering = hold_up(&mut daemon, &host.control);
    // As if the number had been another's, with the same range.
    let (others, _memory) = Region::create(host.layout.len()).expect("a region");
    let len = memory_of(&daemon, id);
    assert!(len > 0, "what may go at any moment is not handed out, and is his");
    let pages = Pages { session: id, region: others, offset: host.layout.receive_offset(), len: len as u32 };
    let returned = vec![Returned::Pages(GivenBack { pages, is_gone: true })];
    let report = Matter::Returned { who: Cred::of_user(USER), returned };
    let now = daemon.timing.clock.now();
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
    lingering.release();
    settle(&mut daemon);
    assert_eq!(memory_of(&daemon, id), 0);
    daemon.engine.view().audit().expect("sound");
    daemon.engine.view().audit().expect("sound");
}

/// In how many pieces the memory is mapped in this process: each mapping has two, before and behind the receive part.
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
    assert_eq!(mappings_of(&host.memory), 4, "the daemon's and the host's");
    let now = daemon.timing.clock.now();
    daemon.fence(now, id, FenceReason::BadArgument);
    until_with(&mut daemon, "its number is free", |daemon| {
        matches!(daemon.sessions.slot(id), Some(Slot::Free))
    });
    assert_eq!(mappings_of(&host.memory), 4, "not by the engine's thread");
    lingering.release();
    until_with(&mut daemon, "it is unmapped", |_| mappings_of(&host.memory) == 2);
    settle(&mut daemon);
}

/// Lanes that their programs have left were looked at on nobody's account.
#[test]
fn what_a_users_thread_reports_is_on_his_account() {
    if !is_able() {
        return;
    }
    let mut daemon = daemon_with("toed --allow-all");
    let _host = attach_user(&mut daemon, USER);
    let who = Cred::of_user(USER);
    let report = Matter::Returned { who, returned: vec![Returned::Closed(LaneId::default())] };
    assert_eq!(
        daemon.hosts.asker(&daemon.engine, &daemon.sessions, &report),
        Some(daemon.engine.view().users().account(who))
    );
}
