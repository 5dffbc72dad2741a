//! epoll and poll against a fake engine, with kernel descriptors beside.

mod fake;

use fake::{Connection, Engine, until};
use rustix::fd::AsRawFd;
use std::time::Duration;
use toe::errno::{EEXIST, ENOENT};
use toe::{epoll, fd_release, fd_table};
use toe_abi::entry::{Command, Completion};
use toe_abi::errno::Errno;

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;

struct Set(i32);

impl Set {
    fn new() -> Set {
        let fd = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let fd = std::os::fd::IntoRawFd::into_raw_fd(fd);
        epoll::created(fd);
        Set(fd)
    }

    fn add(&self, fd: i32, events: u32) -> Result<(), Errno> {
        epoll::ctl_add(self.0, fd, libc::epoll_event { events, u64: fd as u64 })
    }

    fn modify(&self, fd: i32, events: u32) -> Result<(), Errno> {
        epoll::ctl_mod(self.0, fd, libc::epoll_event { events, u64: fd as u64 })
    }

    fn add_kernel(&self, fd: i32, events: u32) {
        let event = libc::epoll_event { events, u64: fd as u64 };
        if toe::fd_table::epoll_set(fd).is_some() {
            return epoll::ctl_set(self.0, libc::EPOLL_CTL_ADD, fd, Some(event)).expect("a set");
        }
        toe::sys::epoll_ctl(self.0, libc::EPOLL_CTL_ADD, fd, Some(event)).expect("a kernel descriptor");
        epoll::note_kernel_fd(self.0, fd, libc::EPOLL_CTL_ADD, Some(event));
    }

    /// (descriptor, events) of one wait.
    fn wait_for(&self, max: usize, timeout: Option<Duration>) -> Vec<(i32, u32)> {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max];
        let found = epoll::wait(self.0, &mut events, timeout, None).expect("no signal");
        events[..found].iter().map(|e| ({ e.u64 } as i32, { e.events })).collect()
    }

    fn now(&self) -> Vec<(i32, u32)> {
        self.wait_for(64, Some(Duration::ZERO))
    }

    fn wait(&self) -> Vec<(i32, u32)> {
        self.wait_for(64, None)
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        fd_release::remove(self.0);
        let _ = toe::sys::close(self.0);
    }
}

fn drain(c: &Connection) {
    while c.recv(1000).is_ok_and(|bytes| !bytes.is_empty()) {}
}

#[test]
fn level_triggered_sockets_are_reported_while_ready() {
    let engine = Engine::attached();
    let (set, c) = (Set::new(), engine.connected());
    assert_eq!(set.add(c.fd, IN), Ok(()));
    assert_eq!(set.add(c.fd, IN), Err(EEXIST));
    assert_eq!(set.now(), []);
    engine.data(c.queue_set, c.flow, b"ab");
    assert_eq!(set.now(), [(c.fd, IN)]);
    assert_eq!(set.now(), [(c.fd, IN)]);
    assert_eq!(c.recv(1), Ok(b"a".to_vec()));
    assert_eq!(set.now(), [(c.fd, IN)]);
    drain(&c);
    assert_eq!(set.now(), []);
    assert_eq!(set.modify(c.fd, IN | OUT), Ok(()));
    assert_eq!(set.now(), [(c.fd, OUT)]);
    assert_eq!(epoll::ctl_del(set.0, c.fd), Ok(()));
    assert_eq!(epoll::ctl_del(set.0, c.fd), Err(ENOENT));
    assert_eq!(set.modify(c.fd, IN), Err(ENOENT));
    assert_eq!(set.now(), []);
}

#[test]
fn edge_triggered_sockets_are_reported_once_an_event() {
    let engine = Engine::attached();
    let (set, c) = (Set::new(), engine.connected());
    assert_eq!(set.add(c.fd, IN | OUT | RDHUP | EDGE), Ok(()));
    assert_eq!(set.now(), [(c.fd, OUT)]);
    assert_eq!(set.now(), []);
    engine.data(c.queue_set, c.flow, b"a");
    assert_eq!(set.now(), [(c.fd, IN | OUT)]);
    assert_eq!(set.now(), []);
    engine.data(c.queue_set, c.flow, b"b");
    assert_eq!(set.now(), [(c.fd, IN | OUT)], "more data is a new event, though nothing was read");
    engine.post(c.queue_set, Completion::PeerClosed { flow: c.flow });
    assert_eq!(set.now(), [(c.fd, IN | OUT | RDHUP)]);
    assert_eq!(set.now(), []);
    assert_eq!(set.modify(c.fd, IN | EDGE), Ok(()));
    assert_eq!(set.now(), [(c.fd, IN)], "a change looks again");
}

#[test]
fn edge_triggered_writability_comes_back_after_a_full_send() {
    let engine = Engine::attached();
    let (set, c) = (Set::new(), engine.connected());
    assert_eq!(set.add(c.fd, OUT | EDGE), Ok(()));
    assert_eq!(set.now(), [(c.fd, OUT)]);
    engine.post(c.queue_set, Completion::Sent { flow: c.flow, len: 0 });
    assert_eq!(set.now(), [], "nobody was waiting for room");
    let mut sent = 0;
    while let Ok(n) = c.send(&[0; 50_000]) {
        sent += n as u32;
    }
    assert_eq!(set.now(), []);
    engine.post(c.queue_set, Completion::Sent { flow: c.flow, len: sent / 2 });
    assert_eq!(set.now(), [(c.fd, OUT)]);
    assert_eq!(set.now(), []);
}

#[test]
fn one_shot_sockets_are_silent_until_changed() {
    let engine = Engine::attached();
    let (set, c) = (Set::new(), engine.connected());
    assert_eq!(set.add(c.fd, IN | ONE_SHOT), Ok(()));
    engine.data(c.queue_set, c.flow, b"a");
    assert_eq!(set.now(), [(c.fd, IN)]);
    engine.data(c.queue_set, c.flow, b"b");
    assert_eq!(set.now(), []);
    assert_eq!(set.modify(c.fd, IN | ONE_SHOT), Ok(()));
    assert_eq!(set.now(), [(c.fd, IN)]);
    assert_eq!(set.now(), []);
}

#[test]
fn a_failed_connect_and_a_reset_show_all_bits() {
    let engine = Engine::attached();
    let (set, c, d) = (Set::new(), engine.connecting(), engine.connected());
    assert_eq!(set.add(c.fd, IN | OUT | RDHUP), Ok(()));
    assert_eq!(set.add(d.fd, OUT | EDGE), Ok(()));
    assert_eq!(set.now(), [(d.fd, OUT)]);
    engine.post(c.queue_set, Completion::Connected { flow: c.flow, errno: Errno::ECONNREFUSED });
    assert_eq!(set.now(), [(c.fd, IN | OUT | RDHUP | HUP | ERR)]);
    engine.post(d.queue_set, Completion::Reset { flow: d.flow, errno: Errno::ECONNRESET });
    assert!(set.now().contains(&(d.fd, OUT | HUP | ERR)), "ERR and HUP need not be asked for");
}

#[test]
fn many_sockets_are_reported_in_turn() {
    let engine = Engine::attached();
    let (set, all) = (Set::new(), (0..10).map(|_| engine.connected()).collect::<Vec<_>>());
    for c in &all {
        assert_eq!(set.add(c.fd, IN), Ok(()));
        engine.data(c.queue_set, c.flow, b"x");
    }
    let mut seen: Vec<i32> = (0..4).flat_map(|_| set.wait_for(3, None)).map(|(fd, _)| fd).collect();
    seen.truncate(10);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 10, "nobody starves");
}

#[test]
fn a_closed_socket_leaves_and_its_number_can_be_used_again() {
    let engine = Engine::attached();
    let (set, c, d) = (Set::new(), engine.connected(), engine.connected());
    // A number that nothing else in this program uses.
    let copy = |c: &Connection| {
        let fd = toe::sys::fcntl(c.fd, libc::F_DUPFD_CLOEXEC, 600).expect("a descriptor");
        fd_table::duplicate(c.fd, fd);
        fd
    };
    let close = |fd| {
        fd_release::remove(fd);
        let _ = toe::sys::close(fd);
    };
    let fd = copy(&c);
    assert_eq!(set.add(fd, IN | OUT), Ok(()));
    assert_eq!(set.now(), [(fd, OUT)]);
    close(fd);
    assert_eq!(set.now(), [(fd, OUT)], "as in Linux, a registration lives as long as any copy");
    c.close();
    assert_eq!(set.now(), []);
    assert_eq!(copy(&d), fd);
    assert_eq!(set.add(fd, OUT), Ok(()));
    assert_eq!(set.now(), [(fd, OUT)]);
    close(fd);
}

#[test]
fn a_parked_wait_wakes_for_data_for_the_kernel_and_for_time() {
    let engine = Engine::attached();
    let (set, c) = (Set::new(), engine.connected());
    assert_eq!(set.add(c.fd, IN), Ok(()));
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| set.wait());
        engine.data(c.queue_set, c.flow, b"a");
        assert_eq!(waiter.join().expect("no panic"), [(c.fd, IN)]);
        drain(&c);
        // Added while another thread waits.
        let waiter = scope.spawn(|| set.wait());
        set.add_kernel(near.as_raw_fd(), IN);
        rustix::io::write(&far, b"k").expect("room");
        assert_eq!(waiter.join().expect("no panic"), [(near.as_raw_fd(), IN)]);
        rustix::io::read(&near, &mut [0; 4]).expect("a byte");
    });
    let before = std::time::Instant::now();
    assert_eq!(set.wait_for(4, Some(Duration::from_millis(30))), []);
    assert!(before.elapsed() >= Duration::from_millis(30));
}

#[test]
fn kernel_descriptors_are_seen_beside_busy_sockets() {
    let engine = Engine::attached();
    let (set, c) = (Set::new(), engine.connected());
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair");
    assert_eq!(set.add(c.fd, OUT), Ok(()));
    set.add_kernel(near.as_raw_fd(), IN);
    rustix::io::write(&far, b"k").expect("room");
    let seen = (0..64).flat_map(|_| set.wait_for(1, None)).any(|(fd, _)| fd == near.as_raw_fd());
    assert!(seen, "even with room for one event");
}

#[test]
fn a_thread_in_a_plain_kernel_wait_sees_the_first_socket() {
    let engine = Engine::attached();
    let (set, c) = (Set::new(), engine.connected());
    let (near, _far) = std::os::unix::net::UnixStream::pair().expect("a pair");
    set.add_kernel(near.as_raw_fd(), IN);
    engine.data(c.queue_set, c.flow, b"a");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| set.wait());
        assert_eq!(set.add(c.fd, IN), Ok(()));
        assert_eq!(waiter.join().expect("no panic"), [(c.fd, IN)]);
    });
    assert_eq!(set.now(), [(c.fd, IN)]);
}

#[test]
fn each_of_several_waiting_threads_gets_an_event() {
    let engine = Engine::attached();
    let (set, c, d) = (Set::new(), engine.connected(), engine.connected());
    assert_eq!(set.add(c.fd, IN | EDGE), Ok(()));
    assert_eq!(set.add(d.fd, IN | EDGE), Ok(()));
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..2).map(|_| scope.spawn(|| set.wait_for(1, None))).collect();
        engine.data(c.queue_set, c.flow, b"a");
        engine.data(d.queue_set, d.flow, b"b");
        let mut seen: Vec<_> = waiters.into_iter().flat_map(|w| w.join().expect("no panic")).collect();
        seen.sort_unstable();
        let mut both = vec![(c.fd, IN), (d.fd, IN)];
        both.sort_unstable();
        assert_eq!(seen, both);
    });
}

#[test]
fn a_listener_is_ready_when_a_connection_waits() {
    let engine = Engine::attached();
    let (set, (l, id)) = (Set::new(), engine.listening());
    assert_eq!(set.add(l.fd, IN), Ok(()));
    assert_eq!(engine.try_command(0), None, "the set may be meant for a child");
    assert_eq!(set.now(), []);
    let (queue_set, command, _) = engine.command();
    assert_eq!(command, Command::AcceptCredit { listener: id, count: 10 });
    assert_eq!(set.now(), []);
    assert_eq!(engine.try_command(0), None, "asked once");
    engine.post(queue_set, Completion::Accepted { listener: id, flow: engine.new_flow() });
    assert_eq!(set.wait(), [(l.fd, IN)]);
}

#[test]
fn a_listener_that_is_added_to_a_set_with_a_parked_wait_asks_for_connections() {
    let engine = Engine::attached();
    let (set, c, (l, id)) = (Set::new(), engine.connected(), engine.listening());
    assert_eq!(set.add(c.fd, IN), Ok(()));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| set.wait());
        engine.until_armed(c.queue_set);
        assert_eq!(set.add(l.fd, IN), Ok(()));
        let (queue_set, command, _) = engine.command();
        assert_eq!(command, Command::AcceptCredit { listener: id, count: 10 });
        engine.post(queue_set, Completion::Accepted { listener: id, flow: engine.new_flow() });
        assert_eq!(waiter.join().expect("no panic"), [(l.fd, IN)]);
    });
}

#[test]
fn a_kernel_registration_moves_when_the_descriptor_goes_to_the_engine() {
    let engine = Engine::attached();
    let set = Set::new();
    let kernel = std::net::TcpListener::bind("127.0.0.1:0").expect("a kernel socket");
    let fd = kernel.as_raw_fd();
    set.add_kernel(fd, OUT | EDGE);
    let c = engine.connected();
    epoll::replace(fd, c.socket);
    assert_eq!(set.now(), [(fd, OUT)]);
}

#[test]
fn a_one_shot_registration_that_the_kernel_has_disarmed_stays_so() {
    let engine = Engine::attached();
    for fired in [true, false] {
        let set = Set::new();
        let kernel = std::net::TcpListener::bind("127.0.0.1:0").expect("a kernel socket");
        let fd = kernel.as_raw_fd();
        set.add_kernel(fd, IN | ONE_SHOT);
        if fired {
            let _client =
                std::net::TcpStream::connect(kernel.local_addr().expect("bound")).expect("connects");
            assert_eq!(set.now(), [(fd, IN)]);
        }
        epoll::note_disarmed(fd);
        let c = engine.connected();
        epoll::replace(fd, c.socket);
        engine.data(c.queue_set, c.flow, b"x");
        assert_eq!(set.now(), if fired { vec![] } else { vec![(fd, IN)] });
        let flow = c.flow;
        c.close();
        assert_eq!(engine.command().1, Command::Close { flow, abort: true });
    }
}

#[test]
fn an_epoll_set_in_another_one_is_ready_only_for_who_asks_to_read() {
    let engine = Engine::attached();
    let (inner, outer, c) = (Set::new(), Set::new(), engine.connected());
    assert_eq!(inner.add(c.fd, OUT), Ok(()));
    for (events, ready) in [(OUT, 0), (IN, 1)] {
        outer.add_kernel(inner.0, events);
        let mut fds = [libc::pollfd { fd: outer.0, events: libc::POLLIN, revents: 0 }];
        assert_eq!(toe::poll::poll(&mut fds, Some(Duration::ZERO), None), Ok(ready), "{events:x}");
        assert_eq!(outer.now().len(), ready);
        epoll::ctl_set(outer.0, libc::EPOLL_CTL_DEL, inner.0, None).expect("it is in");
    }
}

#[test]
fn a_one_shot_set_that_the_kernel_has_reported_is_disarmed_for_both() {
    let engine = Engine::attached();
    let (inner, outer, c) = (Set::new(), Set::new(), engine.connected());
    let readable = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    inner.add_kernel(readable.as_raw_fd(), IN);
    outer.add_kernel(inner.0, IN | ONE_SHOT);
    assert_eq!(outer.now(), [(inner.0, IN)]);
    assert_eq!(inner.add(c.fd, OUT), Ok(()));
    assert_eq!(outer.now(), []);
}

#[test]
fn a_one_shot_set_that_the_engine_has_reported_is_disarmed_for_both() {
    let engine = Engine::attached();
    let (inner, outer, c) = (Set::new(), Set::new(), engine.connected());
    assert_eq!(inner.add(c.fd, OUT), Ok(()));
    outer.add_kernel(inner.0, IN | ONE_SHOT);
    assert_eq!(outer.now(), [(inner.0, IN)]);
    let readable = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    inner.add_kernel(readable.as_raw_fd(), IN);
    assert_eq!(outer.now(), []);
}

/// Another process has just taken the connection; the next claim of this one succeeds.
fn take_away(engine: &Engine, c: &Connection) {
    let flow = engine.new_flow();
    let anchor = 0;
    engine.answer_claims_with(vec![toe_abi::attach::Reply::ClaimedFlow {
        flow: flow.raw(),
        anchor,
        read: 0,
        written: 0,
    }]);
    engine.write_info(flow, "10.0.0.1:1".parse().expect("an address"), "10.0.0.2:2".parse().expect("one"));
    let moved = c.socket.owner_queue().expect("its queue set");
    engine.post(usize::from(moved.index), Completion::Moved { flow: c.flow });
}

#[test]
fn a_look_that_does_not_wait_takes_back_what_another_process_has_taken() {
    let engine = Engine::attached();
    let c = engine.connected();
    take_away(&engine, &c);
    let mut fds = [libc::pollfd { fd: c.fd, events: libc::POLLOUT, revents: 0 }];
    assert_eq!(toe::poll::poll(&mut fds, Some(Duration::ZERO), None), Ok(1));
    let (set, d) = (Set::new(), engine.connected());
    assert_eq!(set.add(d.fd, OUT), Ok(()));
    take_away(&engine, &d);
    assert_eq!(set.now(), [(d.fd, OUT)]);
}

#[test]
fn a_connection_that_another_process_has_is_not_at_its_end() {
    let engine = Engine::attached();
    let c = engine.connected();
    c.socket.mark_shared(c.fd);
    engine.data(c.queue_set, c.flow, b"unread");
    engine.post(c.queue_set, Completion::PeerClosed { flow: c.flow });
    assert_eq!(c.ready(), IN | OUT | RDHUP);
    take_away(&engine, &c);
    let at_once = toe::socket::RecvFlags { dont_wait: true, ..Default::default() };
    let taken_back = c.recv_with(9, at_once);
    assert_eq!(taken_back, Err(Errno::EAGAIN), "the bytes are about to be announced again");
    assert!(!c.socket.is_moved());
}

#[test]
fn a_listener_that_was_registered_before_listen_asks_for_connections() {
    let engine = Engine::attached();
    let (set, (l, id)) = (Set::new(), engine.listening());
    // The kernel's registration is that of the twin, from before `listen`.
    let event = libc::epoll_event { events: IN, u64: 7 };
    epoll::note_kernel_fd(set.0, l.fd, libc::EPOLL_CTL_ADD, Some(event));
    epoll::replace(l.fd, l.socket);
    assert_eq!(set.now(), []);
    let (queue_set, command, _) = engine.command();
    assert_eq!(command, Command::AcceptCredit { listener: id, count: 10 });
    engine.post(queue_set, Completion::Accepted { listener: id, flow: engine.new_flow() });
    assert_eq!(set.wait(), [(7, IN)]);
}

#[test]
fn an_engine_that_dies_wakes_a_parked_wait() {
    let engine = Engine::attached();
    let (set, c) = (Set::new(), engine.connected());
    assert_eq!(set.add(c.fd, IN), Ok(()));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| set.wait());
        engine.kill();
        assert_eq!(waiter.join().expect("no panic"), [(c.fd, IN | HUP | ERR)]);
    });
}

#[test]
fn an_engine_that_dies_shows_to_a_program_that_never_parks() {
    let engine = Engine::attached();
    let (set, c) = (Set::new(), engine.connected());
    assert_eq!(set.add(c.fd, IN), Ok(()));
    engine.kill();
    assert_eq!(until(|| Some(set.now()).filter(|events| !events.is_empty())), [(c.fd, IN | HUP | ERR)]);
}

fn polled(fd: i32, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

#[test]
fn poll_mixes_sockets_and_kernel_descriptors() {
    let engine = Engine::attached();
    let c = engine.connected();
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let mut fds = [polled(near.as_raw_fd(), libc::POLLIN), polled(-1, 0), polled(c.fd, libc::POLLIN)];
    assert_eq!(toe::poll::poll(&mut fds, Some(Duration::ZERO), None), Ok(0));
    engine.data(c.queue_set, c.flow, b"a");
    rustix::io::write(&far, b"k").expect("room");
    assert_eq!(toe::poll::poll(&mut fds, None, None), Ok(2));
    assert_eq!(fds.map(|polled| polled.revents), [libc::POLLIN, 0, libc::POLLIN]);
    drain(&c);
    rustix::io::read(&near, &mut [0; 4]).expect("a byte");
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| toe::poll::poll(&mut fds, None, None).map(|n| (n, fds.map(|p| p.revents))));
        engine.data(c.queue_set, c.flow, b"b");
        assert_eq!(waiter.join().expect("no panic"), Ok((1, [0, 0, libc::POLLIN])));
    });
    std::thread::scope(|scope| {
        drain(&c);
        let waiter =
            scope.spawn(|| toe::poll::poll(&mut fds, None, None).map(|n| (n, fds.map(|p| p.revents))));
        rustix::io::write(&far, b"k").expect("room");
        assert_eq!(waiter.join().expect("no panic"), Ok((1, [libc::POLLIN, 0, 0])));
    });
}

#[test]
fn polling_an_epoll_descriptor_sees_its_sockets() {
    let engine = Engine::attached();
    let (set, c) = (Set::new(), engine.connected());
    assert_eq!(set.add(c.fd, IN), Ok(()));
    let mut fds = [polled(set.0, libc::POLLIN)];
    assert_eq!(toe::poll::poll(&mut fds, Some(Duration::ZERO), None), Ok(0));
    engine.data(c.queue_set, c.flow, b"a");
    assert_eq!(toe::poll::poll(&mut fds, None, None), Ok(1));
}

/// Longer than anything here is waited for.
const LONG: Duration = Duration::from_secs(20);

/// Whether a thread of this process sleeps (proc(5)).
fn sleeps(thread: rustix::thread::Pid) -> bool {
    let stat = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let stat = std::fs::read_to_string(stat).expect("it is there");
    stat.rsplit(')').next().is_some_and(|behind_the_name| behind_the_name.starts_with(" S"))
}

/// One thread sleeps before another one fills a channel's ring, of which the peer takes entries without a word.
#[test]
fn a_thread_that_sleeps_for_long_is_told_of_an_edge_of_a_ring_that_was_filled_since() {
    let engine = Engine::attached();
    let (set, c) = (Set::new(), engine.connected());
    let mut peer = fake::peer::Peer::direct(&engine, &c);
    assert_eq!(set.add(c.fd, OUT | EDGE), Ok(()));
    assert_eq!(set.wait(), [(c.fd, OUT)]);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let set = &set;
        let sleeper = scope.spawn(move || {
            tell.send(rustix::thread::gettid()).expect("it is waited for");
            set.wait_for(64, Some(LONG))
        });
        let thread = told.recv().expect("it begins");
        engine.until_armed(c.queue_set);
        // It sleeps, and is not only about to.
        until(|| sleeps(thread).then_some(()));
        while c.send(&[1; 100]).is_ok() {}
        while peer.next().is_some() {}
        // Not at the end of its time.
        until(|| sleeper.is_finished().then_some(()));
        assert_eq!(sleeper.join().expect("the sleeper"), [(c.fd, OUT)]);
    });
}
