//! What one user's programs do does not make others wait.

use super::fake_host::{Control, FakeHost};
use super::{daemon, settle};
use crate::daemon::Daemon;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use toe_abi::attach::{Message, Reply};
use toe_abi::entry::{Command, ReceiveCredit};
use toe_abi::errno::Errno;
use toe_abi::region::CMD_ENTRIES;
use toe_abi::report::SocketsReport;
use toe_base::{Cred, FlowId, ListenerId, SessionId};
use toe_engine::{Counter, Resource};

/// A user who is not the test's own.
const HOG: Cred = Cred::of_user(4711);

/// From now on the session counts as the hog's.
fn give_to_hog(daemon: &mut Daemon, session: SessionId) {
    let peer = daemon.sessions.get_mut(session).expect("live");
    daemon.schedule.budget.remove(std::mem::replace(&mut peer.schedule.account, HOG), session);
    daemon.schedule.budget.add(HOG, session);
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
    let now = daemon.timing.clock.now();
    daemon.round(now);
    let taken = daemon.engine.view().counter(Counter::StaleEntries);
    assert!((1..u64::from(CMD_ENTRIES)).contains(&taken), "{taken} commands in one round");
    settle(&mut daemon);
    assert_eq!(daemon.engine.view().counter(Counter::StaleEntries), u64::from(4 * (CMD_ENTRIES - 1) + 1));
}

#[test]
fn alone_a_user_has_all_his_commands_carried_out_at_once() {
    let mut daemon = daemon();
    let mut hosts = [FakeHost::attach(&mut daemon), FakeHost::attach(&mut daemon)];
    fill(&mut hosts);
    let now = daemon.timing.clock.now();
    daemon.round(now);
    assert_eq!(daemon.engine.view().counter(Counter::StaleEntries), u64::from(2 * (CMD_ENTRIES - 1)));
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
    let now = daemon.timing.clock.now();
    daemon.tick(now).expect("a look outside");
    assert_eq!(daemon.engine.view().counter(Counter::StaleEntries), 0);
    assert_eq!(daemon.engine.view().session(daemon.sessions.live()[0]).listeners, 0, "it is closed");
}

/// The engine takes one command, or some entries, and then looks at what else there is.
#[test]
fn a_turn_is_made_of_steps() {
    let mut daemon = daemon();
    let _neighbour = FakeHost::attach(&mut daemon);
    let mut hogs = hogs(&mut daemon, 2);
    fill(&mut hogs);
    let credit = ReceiveCredit { flow: FlowId::from_raw(9), len: 1 };
    (0..100).for_each(|_| hogs[0].queue.push_credit(credit).expect("room"));
    let id = daemon.sessions.live()[1];
    let now = daemon.timing.clock.now();
    let mut steps = [(); 5].map(|()| daemon.take_some_of_session(now, id));
    assert_eq!(steps[..2], [32, 32], "credits first: they were published before the next command");
    assert_eq!(daemon.engine.view().counter(Counter::StaleEntries), 100 + 2);
    steps.sort_unstable();
    assert_eq!(steps, [1, 5, 32, 32, 32], "then a command a step");
}

#[test]
fn a_doorbell_that_is_rung_for_nothing_is_not_heard_for_a_while() {
    let mut daemon = daemon();
    let mut hosts = [FakeHost::attach(&mut daemon), FakeHost::attach(&mut daemon)];
    let [id, other] = [0, 1].map(|n| daemon.sessions.live()[n]);
    settle(&mut daemon);
    let now = daemon.timing.clock.now();
    for _ in 0..100 {
        // What it is rung for may have been taken before.
        hosts[0].push(Command::FastOpen { listener: ListenerId(FlowId::from_raw(7)), limit: 1 });
        daemon.round(now);
        daemon.sessions.rung(now, id, &mut daemon.schedule.budget, &daemon.outside.poller);
    }
    (0..32).for_each(|_| daemon.sessions.rung(now, id, &mut daemon.schedule.budget, &daemon.outside.poller));
    (0..32)
        .for_each(|_| daemon.sessions.rung(now, other, &mut daemon.schedule.budget, &daemon.outside.poller));
    assert!(daemon.sessions.next_unmute().is_far_future());
    daemon.sessions.rung(now, id, &mut daemon.schedule.budget, &daemon.outside.poller);
    let until = daemon.sessions.next_unmute();
    assert!(until > now && !until.is_far_future(), "all doorbells of an account count together");
    daemon.tick(until).expect("a look outside");
    assert!(daemon.sessions.next_unmute().is_far_future());
}

/// Those that are full and ring for it, too.
#[test]
fn a_session_that_sleeps_is_not_woken_by_a_doorbell_for_nothing() {
    let mut daemon = daemon();
    let _hosts: Vec<FakeHost> = (0..20).map(|_| FakeHost::attach(&mut daemon)).collect();
    settle(&mut daemon);
    let id = daemon.sessions.live()[0];
    let now = daemon.timing.clock.now().after_us(1_000_000);
    daemon.tick(now).expect("a look outside");
    assert_eq!(daemon.schedule.budget.awake().count(), 0, "quiet sessions sleep, and no round looks at them");
    daemon.sessions.get_mut(id).expect("live").to_tell.full = 1 << 5;
    daemon.sessions.rung(now, id, &mut daemon.schedule.budget, &daemon.outside.poller);
    assert_eq!(daemon.schedule.budget.awake().count(), 0);
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

/// Nobody waits for somebody else's list of sockets.
#[test]
fn a_list_of_sockets_is_made_in_steps() {
    let mut daemon = daemon();
    let mut host = FakeHost::attach(&mut daemon);
    let ends: Vec<_> =
        (1..=50).map(|port| host.listen(&mut daemon, SocketAddr::from(([127, 0, 0, 1], port)))).collect();
    let control = Control::new(&mut daemon);
    settle(&mut daemon);
    let now = daemon.timing.clock.now();
    daemon.begin_list(now, 1).expect("the first one");
    assert_eq!(daemon.begin_list(now, 1), Err(Errno::EAGAIN), "one at a time");
    let steps = (0..100).take_while(|_| daemon.carry_on_lists(now)).count();
    assert!((3..10).contains(&steps), "{steps}");
    let (packet, fds) = control.receive().expect("the answer");
    let reply = Message::parse(&packet).and_then(|m| Reply::decode(&m)).expect("a reply");
    let Reply::Report { len } = reply else { panic!("{reply:?}") };
    let mut text = vec![0; len as usize];
    File::from(fds.into_iter().next().expect("memory")).read_exact_at(&mut text, 0).expect("read");
    let report: SocketsReport = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(report.sockets.len(), ends.len());
    daemon.reports.not_before = now;
    daemon.begin_list(now, 1).expect("another one");
    drop(control);
    settle(&mut daemon);
    assert!(daemon.reports.is_empty(), "nobody waits for it");
}
