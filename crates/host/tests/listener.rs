//! Listeners against a fake engine: accept credit, accept, twins, fork.

mod fake;

use fake::{Engine, until};
use std::net::SocketAddr;
use std::time::Duration;
use toe::socket::{AcceptError, AcceptHow, OfKernel, Shutdown};
use toe::{Anchor, Socket, Stack, epoll, fd_release, fd_table};
use toe_abi::attach::Reply;
use toe_abi::command::{LISTEN_KERNEL_TOO, ListenArgs};
use toe_abi::entry::{Command, Completion};
use toe_abi::errno::Errno;
use zerocopy::FromBytes;

const NOW: AcceptHow = AcceptHow { dont_wait: true, cloexec: true, nonblocking: true, with_twin: false };

fn close(fd: i32) {
    fd_release::remove(fd);
    let _ = toe::sys::close(fd);
}

#[test]
fn a_listener_asks_for_connections_only_when_somebody_wants_them() {
    let engine = Engine::attached();
    let (l, id) = engine.listening();
    assert_eq!(l.socket.ready_now(), 0);
    assert_eq!(engine.try_command(0), None, "merely holding it asks for nothing");
    assert_eq!(l.socket.accept(NOW).map(|_| ()), Err(AcceptError::Errno(Errno::EAGAIN)));
    let (queue_set, command, _) = engine.command();
    assert_eq!(command, Command::AcceptCredit { listener: id, count: 10 });

    let flow = engine.new_flow();
    let local: SocketAddr = "10.0.0.1:80".parse().expect("an address");
    let remote: SocketAddr = "10.0.0.9:5555".parse().expect("an address");
    engine.write_info(flow, local, remote);
    engine.post(queue_set, Completion::Accepted { listener: id, flow });
    engine.data(queue_set, flow, b"early");
    assert_eq!(l.ready(), libc::EPOLLIN as u32);
    let accepted = l.socket.accept(NOW).expect("a connection waits");
    assert_eq!(accepted.peer, remote);
    assert_eq!(accepted.socket.local_addr(), Ok(local));
    assert!(accepted.socket.nonblocking());
    let (_, command, _) = engine.command();
    assert!(matches!(command, Command::Accept { flow: f, fd, .. } if f == flow && fd == accepted.fd as u32));
    assert_eq!(engine.command().1, Command::AcceptCredit { listener: id, count: 1 });
    let mut bytes = [0; 9];
    let got = accepted.socket.recv(&mut [std::io::IoSliceMut::new(&mut bytes)], Default::default());
    assert_eq!((got, &bytes[..5]), (Ok(5), &b"early"[..]));
    assert_eq!(l.ready(), 0);
    assert_eq!(engine.open_anchors().len(), 2, "the listener's and the connection's");
    close(accepted.fd);
    assert_eq!(engine.open_anchors().len(), 1);
    assert_eq!(engine.command().1, Command::ShutdownSend { flow });
    assert_eq!(engine.try_command(0), None);
}

#[test]
fn the_engine_is_told_how_many_may_come_early() {
    let engine = Engine::attached();
    let (l, id) = engine.listening();
    let set = |limit: i32| {
        l.socket.set_option(libc::IPPROTO_TCP, libc::TCP_FASTOPEN, &limit.to_ne_bytes()).expect("a listener")
    };
    set(16);
    assert_eq!(engine.command().1, Command::FastOpen { listener: id, limit: 16 });
    set(0);
    assert_eq!(engine.command().1, Command::FastOpen { listener: id, limit: 0 });
}

#[test]
fn the_engine_is_told_for_how_long_a_connection_without_bytes_waits() {
    let engine = Engine::attached();
    let (l, id) = engine.listening();
    let set =
        |secs: i32| l.socket.keep_option(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, &secs.to_ne_bytes());
    set(7);
    assert_eq!(engine.command().1, Command::DeferAccept { listener: id, secs: 7 });
    set(-1);
    assert_eq!(engine.command().1, Command::DeferAccept { listener: id, secs: 0 });
}

#[test]
fn accepted_sockets_take_over_the_listeners_options() {
    let engine = Engine::attached();
    let (l, id) = engine.listening();
    let one = 1i32.to_ne_bytes();
    assert_eq!(l.socket.set_option(libc::IPPROTO_TCP, libc::TCP_NODELAY, &one), Ok(()));
    assert!(l.socket.accept(NOW).is_err());
    let (queue_set, ..) = engine.command();
    let flow = engine.new_flow();
    engine.post(queue_set, Completion::Accepted { listener: id, flow });
    let accepted = l.socket.accept(NOW).expect("a connection waits");
    assert!(matches!(engine.command().1, Command::Accept { .. }));
    let option = toe_abi::entry::FlowOption::NoDelay;
    assert_eq!(engine.command().1, Command::SetOption { flow, option, value: 1 });
    let mut value = [0; 4];
    assert_eq!(accepted.socket.get_option(libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut value), Ok(4));
    assert_eq!(value, one);
    close(accepted.fd);
}

#[test]
fn a_blocked_accept_wakes_for_a_connection_and_for_shutdown() {
    let engine = Engine::attached();
    let (l, id) = engine.listening();
    l.socket.set_nonblocking(false);
    std::thread::scope(|scope| {
        let how = AcceptHow { cloexec: true, ..AcceptHow::default() };
        let acceptor = scope.spawn(move || {
            let first = l.socket.accept(how).map(|accepted| accepted.fd);
            (first, l.socket.accept(how).map(|accepted| accepted.fd), l)
        });
        let (queue_set, ..) = engine.command();
        let flow = engine.new_flow();
        engine.post(queue_set, Completion::Accepted { listener: id, flow });
        assert!(matches!(engine.command().1, Command::Accept { .. }));
        assert!(matches!(engine.command().1, Command::AcceptCredit { count: 1, .. }));
        let listener = (0..1024).filter_map(fd_table::get).find(|s| s.kind() == toe::socket::Kind::Listener);
        assert_eq!(listener.expect("it is in the table").shutdown(Shutdown::Both), Ok(()));
        let (first, second, l) = acceptor.join().expect("no panic");
        close(first.expect("a descriptor"));
        assert_eq!(second, Err(AcceptError::Errno(Errno::EINVAL)));
        drop(l);
    });
}

#[test]
fn a_listener_with_a_twin_takes_from_both_and_outlives_the_engine() {
    let engine = Engine::attached();
    let twin = std::net::TcpListener::bind("127.0.0.1:0").expect("a kernel listener");
    let local = twin.local_addr().expect("it is bound");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&twin);
    let anchor = Anchor::take(
        Stack::attached(toe::stack::EngineIdx::FIRST).expect("attached"),
        toe::AnchorUse::Listener,
    )
    .expect("an anchor");
    let handle = anchor.handle;
    let id = toe_base::ListenerId(engine.new_flow());
    let of_kernel = OfKernel { fd: toe::sys::borrow(fd), is_taken_from: true };
    let socket = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (queue_set, command, args) = engine.command();
            let Command::Listen { token } = command else { panic!("{command:?} is no Listen") };
            let args = ListenArgs::read_from_bytes(&args).expect("64 bytes");
            assert_eq!((args.twin, args.flags), (7, LISTEN_KERNEL_TOO));
            let kind = command.kind();
            let result = Completion::CommandResult { token, command: kind, errno: Errno::OK, id: id.0.raw() };
            engine.post(queue_set, result);
        });
        Socket::listen(anchor, local, 5, Some(of_kernel), fd).expect("the engine said yes")
    });
    fd_table::install(fd, socket);
    assert_eq!(engine.twins_shown(), 1);
    let hidden = engine.opened(handle).expect("the anchor is open");
    assert!(socket.has_twin() && Stack::is_internal_fd(hidden));

    let how = AcceptHow { with_twin: true, cloexec: true, ..AcceptHow::default() };
    let of_both = || {
        let accepted = socket.accept_of_both(how, &mut |listener| listener == fd);
        accepted.map(|accepted| accepted.fd)
    };
    std::thread::scope(|scope| {
        let acceptor = scope.spawn(|| socket.accept(how).map(|accepted| accepted.fd));
        let (queue_set, ..) = engine.command();
        engine.post(queue_set, Completion::Accepted { listener: id, flow: engine.new_flow() });
        close(acceptor.join().expect("no panic").expect("the engine's connection"));
        let acceptor = scope.spawn(of_both);
        let client = std::net::TcpStream::connect(local).expect("the kernel listens");
        assert_eq!(acceptor.join().expect("no panic"), Err(AcceptError::OfKernel));
        drop((client, twin.accept().expect("the kernel's connection")));
        engine.kill();
        let acceptor = scope.spawn(of_both);
        let _client = std::net::TcpStream::connect(local).expect("the kernel listens");
        assert_eq!(acceptor.join().expect("no panic"), Err(AcceptError::OfKernel));
    });
    fd_release::remove(fd);
    assert_eq!(engine.opened(handle), None, "the hidden anchor was closed with the listener");
}

/// Runs `child` in a forked process and waits for it.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses this library and the allocator, which both take care of forks, and ends without returning.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).map_or(2, |good| i32::from(!good));
        // SAFETY: ends the process at once, without running what the parent registered.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status == 0
}

#[test]
fn a_child_claims_what_it_uses_and_only_closes_what_it_does_not() {
    let engine = Engine::attached();
    let used = engine.connected();
    let unused = engine.connected();
    let claimed = engine.new_flow();
    engine.answer_claims_with(vec![Reply::ClaimedFlow {
        flow: claimed.raw(),
        anchor: 0,
        read: 0,
        written: 0,
    }]);
    let good = std::thread::scope(|scope| {
        // Plays the engine for the child: unread data comes again, to the new session.
        scope.spawn(|| {
            until(|| (engine.sessions() == 2).then_some(()));
            until(|| engine.with(1, |session| (!session.queue_sets.is_empty()).then_some(())));
            engine.data_to(1, 0, claimed, b"moved");
        });
        in_child(|| {
            let closed = fd_release::remove(unused.fd) == fd_release::Removed::Socket;
            let _ = toe::sys::close(unused.fd);
            used.socket.set_nonblocking(false);
            closed && used.recv(9) == Ok(b"moved".to_vec())
        })
    });
    assert!(good, "the child's part");
    assert_eq!(engine.with(1, |session| session.queue_sets.len()), 1, "which is the one that it uses");
    assert_eq!(engine.try_command(0), None, "nothing was said in the parent's name");
    engine.post(used.queue_set, Completion::Moved { flow: used.flow });
    assert_eq!(used.ready(), 0, "another process has it: nothing is reported here");
    assert_eq!(used.recv(1), Err(Errno::ECONNRESET), "a call takes it back; this engine refuses");
    unused.close();
    let (_, command, _) = engine.command();
    assert!(matches!(command, toe_abi::entry::Command::CloseCopy { .. }), "{command:?}");
    assert_eq!(engine.try_command(0), None, "a shared descriptor is just closed");
}

#[test]
fn a_child_claims_the_listeners_of_an_epoll_set_that_it_inherited() {
    child_waits_with_inherited_set(true);
}

#[test]
fn a_parent_that_only_fills_an_epoll_set_for_its_child_asks_for_no_connections() {
    child_waits_with_inherited_set(false);
}

fn child_waits_with_inherited_set(parent_waits: bool) {
    let engine = Engine::attached();
    let (l, id) = engine.listening();
    let epfd = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("an epoll");
    let epfd = std::os::fd::IntoRawFd::into_raw_fd(epfd);
    epoll::created(epfd);
    let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 42 };
    assert_eq!(epoll::ctl_add(epfd, l.fd, event), Ok(()));
    if parent_waits {
        assert_eq!(epoll::wait(epfd, &mut [event], Some(Duration::ZERO), None), Ok(0));
        assert_eq!(engine.command().1, Command::AcceptCredit { listener: id, count: 10 });
    }
    let own = toe_base::ListenerId(engine.new_flow());
    engine.answer_claims_with(vec![Reply::ClaimedListener { listener: own.0.raw(), anchor: 0 }]);
    let good = std::thread::scope(|scope| {
        scope.spawn(|| {
            until(|| (engine.sessions() == 2).then_some(()));
            let (queue_set, command, _) = until(|| engine.try_command(1));
            assert_eq!(command, Command::AcceptCredit { listener: own, count: 10 });
            engine.post_to(1, queue_set, Completion::Accepted { listener: own, flow: engine.new_flow() });
        });
        in_child(|| {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
            epoll::wait(epfd, &mut events, None, None) == Ok(1) && { events[0].u64 } == 42
        })
    });
    assert!(good, "the child's part");
    assert_eq!(engine.try_command(0), None, "nothing more was asked for by the parent");
    fd_release::remove(epfd);
    let _ = toe::sys::close(epfd);
}

/// On a busy machine: the engine said that the name is in use, and nothing of whether it still is.
#[test]
fn what_the_engine_does_not_answer_gives_no_name_away() {
    let engine = Engine::attached();
    let stack = Stack::attached(toe::stack::EngineIdx::FIRST).expect("attached");
    let bound = std::net::TcpListener::bind("127.0.0.1:0").expect("a kernel socket");
    let local = bound.local_addr().expect("bound");
    for (second, is_in_use) in [(Errno::ENOBUFS, true), (Errno::EADDRINUSE, true), (Errno::OK, false)] {
        let answered = std::thread::scope(|scope| {
            let asked = scope.spawn(|| Socket::is_in_use(stack, local, std::os::fd::AsFd::as_fd(&bound)));
            for errno in [Errno::EADDRINUSE, second] {
                let (queue_set, command, _) = engine.command();
                let Command::Listen { token } = command else { panic!("{command:?} asks for no name") };
                let kind = command.kind();
                engine.post(queue_set, Completion::CommandResult { token, command: kind, errno, id: 0 });
            }
            asked.join().expect("no panic")
        });
        assert_eq!(answered, Ok(is_in_use), "{second:?}");
    }
}
