//! What one user's programs do does not make others wait.

use super::fake_host::FakeHost;
use super::{daemon, settle};
use crate::daemon::Daemon;
use std::net::SocketAddr;
use toe_abi::entry::Command;
use toe_abi::region::CMD_ENTRIES;
use toe_base::{FlowId, ListenerId, SessionId};
use toe_engine::{Counter, Resource};

/// A user who is not the test's own.
const HOG: u32 = 4711;

/// From now on the session counts as the hog's.
fn give_to_hog(daemon: &mut Daemon, session: SessionId) {
    let uid = daemon.sessions.get(session).expect("live").peer.uid;
    daemon.budget.remove(uid, session);
    daemon.budget.add(HOG, session);
}

/// Hosts of the hog's whose rings are full of commands about nothing.
fn hogs(daemon: &mut Daemon, count: usize) -> Vec<FakeHost> {
    let hosts: Vec<FakeHost> = (0..count).map(|_| FakeHost::attach(daemon)).collect();
    let sessions = daemon.sessions.live().to_vec();
    sessions[sessions.len() - count..].iter().for_each(|session| give_to_hog(daemon, *session));
    hosts
}

fn fill(hosts: &mut [FakeHost]) {
    let stale = ListenerId(FlowId::from_raw(7));
    for host in hosts {
        for _ in 0..CMD_ENTRIES - 1 {
            host.queue.push_command(Command::FastOpen { listener: stale, limit: 1 }).expect("room");
        }
        host.doorbell.ring_if_wanted().expect("rung");
    }
}

#[test]
fn a_user_with_full_rings_gets_his_turn_and_his_neighbour_too() {
    let mut daemon = daemon();
    let mut neighbour = FakeHost::attach(&mut daemon);
    let mut hogs = hogs(&mut daemon, 4);
    fill(&mut hogs);
    let stale = ListenerId(FlowId::from_raw(7));
    neighbour.push(Command::FastOpen { listener: stale, limit: 1 });
    let now = daemon.clock.now();
    daemon.round(now);
    let taken = daemon.engine.counter(Counter::StaleEntries);
    assert!((2..=4 * 16 + 1).contains(&taken), "{taken} commands in one round");
    settle(&mut daemon);
    assert_eq!(daemon.engine.counter(Counter::StaleEntries), u64::from(4 * (CMD_ENTRIES - 1) + 1));
}

#[test]
fn alone_a_user_has_all_his_commands_carried_out_at_once() {
    let mut daemon = daemon();
    let mut hosts = [FakeHost::attach(&mut daemon), FakeHost::attach(&mut daemon)];
    fill(&mut hosts);
    let now = daemon.clock.now();
    daemon.round(now);
    assert_eq!(daemon.engine.counter(Counter::StaleEntries), u64::from(2 * (CMD_ENTRIES - 1)));
}

#[test]
fn the_last_close_of_a_descriptor_takes_no_entries_but_those_of_its_session() {
    let mut daemon = daemon();
    let mut neighbour = FakeHost::attach(&mut daemon);
    let (_, end) = neighbour.listen(&mut daemon, SocketAddr::from(([127, 0, 0, 1], 80)));
    let mut hogs = hogs(&mut daemon, 2);
    settle(&mut daemon);
    fill(&mut hogs);
    drop(end);
    let now = daemon.clock.now();
    daemon.tick(now).expect("a look outside");
    assert_eq!(daemon.engine.counter(Counter::StaleEntries), 0);
    assert_eq!(daemon.engine.session_view(daemon.sessions.live()[0]).listeners, 0, "it is closed");
}

#[test]
fn a_doorbell_that_wakes_the_engine_for_nothing_is_not_heard_for_a_while() {
    let mut daemon = daemon();
    let host = FakeHost::attach(&mut daemon);
    let id = daemon.sessions.live()[0];
    let now = daemon.clock.now();
    (0..32).for_each(|_| daemon.wake(now, id, true));
    assert!(daemon.sessions.next_unmute().is_far_future());
    (0..100).for_each(|_| daemon.wake(now, id, false));
    assert!(daemon.sessions.next_unmute().is_far_future(), "the engine was awake");
    daemon.wake(now, id, true);
    let until = daemon.sessions.next_unmute();
    assert!(until > now && !until.is_far_future());
    daemon.tick(until).expect("a look outside");
    assert!(daemon.sessions.next_unmute().is_far_future());
    drop(host);
}

#[test]
fn what_users_have_is_in_the_report() {
    let mut daemon = daemon();
    let mut host = FakeHost::attach(&mut daemon);
    let (_, _end) = host.listen(&mut daemon, SocketAddr::from(([127, 0, 0, 1], 80)));
    let report = daemon.whole_status();
    let [account] = report.users.as_slice() else { panic!("{:?}", report.users) };
    let used = |resource: Resource| account.parts.get(resource.name()).map_or(0, |part| part.used);
    assert_eq!([Resource::Sessions, Resource::Listeners].map(used), [1, 1]);
    assert_eq!(report.quotas["sessions"].used, 1);
}
