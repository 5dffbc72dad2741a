//! Connections whose descriptor several processes have, and have no more: when one of them alone has it, it may have a channel.

use super::direct::{Ends, Machine};
use crate::ControlEvent;
use crate::counter::Counter;
use crate::work::{Change, Changed, StreamCounts};
use toe_abi::entry::{Command, Completion};
use toe_base::{AnchorHandle, FlowId, QueueSetId, SessionId};

const USER: u32 = 1000;
const QS: QueueSetId = QueueSetId(0);

/// A server that makes a process for a connection.
struct Family {
    machine: Machine,
    ends: Ends,
    anchor: AnchorHandle,
}

impl Family {
    fn new() -> Family {
        let mut machine = Machine::new(USER);
        let client = machine.attach(USER);
        let ends = machine.connect(client);
        let anchor = machine.anchor_of(ends[1]).expect("accepted");
        Family { machine, ends, anchor }
    }

    fn parent(&self) -> SessionId {
        self.ends[1].0
    }

    /// The parent makes a child.
    fn fork(&mut self, parent: SessionId) {
        let m = &mut self.machine;
        m.hosts.hear(&mut m.engine);
        m.engine.change(m.now, parent, Change::Share, &mut m.hosts).expect("nothing is direct");
        m.hosts.hear(&mut m.engine);
    }

    fn parent_closes(&mut self) {
        let (parent, anchor) = (self.parent(), self.anchor);
        self.machine.command(parent, Command::CloseCopy { lifetime: anchor }, &[]);
    }

    /// A process that has a copy uses it for the first time.
    fn claim(&mut self) -> (SessionId, FlowId, StreamCounts) {
        let m = &mut self.machine;
        let child = m.attach(USER);
        let claimed = m.engine.claim(m.now, child, QS, 7, self.anchor, &mut m.hosts);
        m.hosts.hear(&mut m.engine);
        m.engine.handle_control(m.now, ControlEvent::Shared(self.anchor), &mut m.hosts);
        let Ok(Changed::Flow(flow, counts)) = claimed else { panic!("{claimed:?}") };
        self.ends[1] = (child, flow);
        (child, flow, counts)
    }

    /// Whether a channel is offered for it, after so many messages.
    fn is_offered(&mut self, messages: u32) -> bool {
        let before = self.machine.engine.view().counter(Counter::ChannelsOpened);
        self.machine.messages(self.ends, messages);
        self.machine.engine.view().counter(Counter::ChannelsOpened) > before
    }
}

#[test]
fn what_a_child_goes_on_with_alone_gets_a_channel() {
    let mut family = Family::new();
    family.fork(family.parent());
    family.parent_closes();
    family.claim();
    assert!(family.is_offered(4));
}

/// Its parent may be kept from the processor for long after it has made the child.
#[test]
fn a_parent_that_closes_its_copy_late_is_waited_for() {
    let mut family = Family::new();
    let parent = family.parent();
    family.fork(parent);
    family.claim();
    assert!(!family.is_offered(1000), "the parent may read, too");
    let anchor = family.anchor;
    family.machine.command(parent, Command::CloseCopy { lifetime: anchor }, &[]);
    assert!(family.is_offered(1), "at the next message");
}

/// The parent still owns it, and would be given bytes that it does not read.
#[test]
fn what_its_owner_has_closed_gets_no_channel_before_somebody_claims_it() {
    let mut family = Family::new();
    family.fork(family.parent());
    family.parent_closes();
    assert!(!family.is_offered(1000));
    family.claim();
    assert!(family.is_offered(1));
}

/// Found with PostgreSQL: of two connections one had no channel.
#[test]
fn the_next_child_has_no_copy_of_what_its_parent_has_closed() {
    let mut family = Family::new();
    family.fork(family.parent());
    family.parent_closes();
    family.fork(family.parent());
    family.claim();
    assert!(family.is_offered(4));
}

/// What happens to the copies of a connection.
type Makes = fn(&mut Family);

/// Whoever goes on with it would have to wait until the other makes a call, and loses what that has not read if it dies.
#[test]
fn who_may_have_a_copy_still_is_not_forgotten() {
    let forks: [(&str, Makes); 5] = [
        ("two children", |family| {
            family.fork(family.parent());
            family.fork(family.parent());
            family.parent_closes();
            family.claim();
        }),
        ("a child of the child", |family| {
            family.fork(family.parent());
            family.parent_closes();
            let (child, ..) = family.claim();
            family.fork(child);
        }),
        ("a child made after another has claimed it", |family| {
            let parent = family.parent();
            family.fork(parent);
            family.claim();
            family.fork(parent);
            let anchor = family.anchor;
            family.machine.command(parent, Command::CloseCopy { lifetime: anchor }, &[]);
        }),
        ("one to whom it was sent after that", |family| {
            let (parent, anchor) = (family.parent(), family.anchor);
            family.fork(parent);
            family.claim();
            family.machine.command(parent, Command::Lend { anchor }, &[]);
            family.machine.command(parent, Command::CloseCopy { lifetime: anchor }, &[]);
        }),
        ("a parent that says twice that it has closed", |family| {
            family.fork(family.parent());
            family.fork(family.parent());
            family.parent_closes();
            family.parent_closes();
            family.claim();
            let anchor = family.anchor;
            family.machine.command(SessionId(1), Command::CloseCopy { lifetime: anchor }, &[]);
        }),
    ];
    for (who, makes) in forks {
        let mut family = Family::new();
        makes(&mut family);
        assert!(!family.is_offered(1000), "{who}");
    }
}

#[test]
fn only_who_had_it_first_says_that_a_copy_is_closed() {
    let mut family = Family::new();
    family.fork(family.parent());
    family.fork(family.parent());
    family.parent_closes();
    let (child, ..) = family.claim();
    let stranger = family.machine.attach(USER);
    let anchor = family.anchor;
    for other in [child, stranger] {
        family.machine.command(other, Command::CloseCopy { lifetime: anchor }, &[]);
    }
    assert!(!family.is_offered(1000));
}

#[test]
fn a_claim_tells_how_far_the_others_were() {
    let mut family = Family::new();
    family.machine.messages(family.ends, 3);
    let [client, server] = family.ends;
    family.machine.messages([server, client], 2);
    family.fork(family.parent());
    let (.., counts) = family.claim();
    assert_eq!(counts, StreamCounts { read: 300, written: 200 });
}

/// Seen once over exec: poll said that there was nothing but to read, and the read was refused with ECONNRESET.
#[test]
fn a_reset_is_told_before_a_claim_is_answered() {
    let mut family = Family::new();
    family.fork(family.parent());
    let (client, flow) = family.ends[0];
    let lifetime = family.machine.anchor_of((client, flow)).expect("connected");
    let m = &mut family.machine;
    m.command(client, Command::Close { flow, abort: true }, &[]);
    m.engine.handle_control(m.now, ControlEvent::LastClose(lifetime), &mut m.hosts);
    let parent = family.parent();
    family.machine.told(parent);
    let (child, flow, _) = family.claim();
    let told = family.machine.told_so_far(child);
    assert!(told.iter().any(|c| matches!(c, Completion::Reset { flow: f, .. } if *f == flow)), "{told:?}");
}
