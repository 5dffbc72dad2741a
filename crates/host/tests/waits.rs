//! Calls that wait, against a fake engine: who is woken by what, and what else ends a wait.

mod fake;

use fake::{Engine, until};
use std::time::Duration;
use toe::socket::RecvFlags;
use toe_abi::entry::Completion;
use toe_abi::errno::Errno;

#[test]
fn a_blocked_recv_wakes_for_data() {
    let engine = Engine::attached();
    let c = engine.connected();
    c.socket.set_nonblocking(false);
    std::thread::scope(|scope| {
        let reader =
            scope.spawn(|| (c.recv(3), c.recv_with(4, RecvFlags { wait_all: true, ..Default::default() })));
        engine.data(c.queue_set, c.flow, b"abc");
        until(|| (!engine.credits().is_empty()).then_some(()));
        engine.data(c.queue_set, c.flow, b"de");
        until(|| (!engine.credits().is_empty()).then_some(()));
        engine.data(c.queue_set, c.flow, b"fg");
        assert_eq!(reader.join().expect("no panic"), (Ok(b"abc".to_vec()), Ok(b"defg".to_vec())));
    });
}

#[test]
fn many_threads_blocked_on_one_queue_set_each_get_their_own() {
    let engine = Engine::attached();
    let all: Vec<_> = (0..8).map(|_| engine.connected()).collect();
    all.iter().for_each(|c| c.socket.set_nonblocking(false));
    std::thread::scope(|scope| {
        let readers: Vec<_> = all.iter().map(|c| scope.spawn(move || c.recv(8))).collect();
        for (n, c) in all.iter().enumerate().rev() {
            engine.data(c.queue_set, c.flow, &[n as u8]);
        }
        for (n, reader) in readers.into_iter().enumerate() {
            assert_eq!(reader.join().expect("no panic"), Ok(vec![n as u8]));
        }
    });
}

#[test]
fn a_blocked_send_goes_on_when_there_is_room() {
    let engine = Engine::attached();
    let c = engine.connected();
    c.socket.set_nonblocking(false);
    let all: Vec<u8> = (0..3_000_000u32).map(|n| (n % 241) as u8).collect();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| c.send(&all));
        let mut arrived = Vec::new();
        while arrived.len() < all.len() {
            let piece = until(|| Some(engine.sent_bytes()).filter(|piece| !piece.is_empty()));
            engine.post(c.queue_set, Completion::Sent { flow: c.flow, len: piece.len() as u32 });
            arrived.extend(piece);
        }
        assert_eq!(sender.join().expect("no panic"), Ok(all.len()));
        assert!(arrived == all);
    });
}

#[test]
fn a_receive_timeout_ends_the_wait() {
    let engine = Engine::attached();
    let c = engine.connected();
    c.socket.set_nonblocking(false);
    let mut time = [0; 16];
    time[8..10].copy_from_slice(&20_000u16.to_ne_bytes());
    assert_eq!(c.socket.set_option(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time), Ok(()));
    let before = std::time::Instant::now();
    assert_eq!(c.recv(1), Err(Errno::EAGAIN));
    assert!(before.elapsed() >= Duration::from_millis(20));
}

#[test]
fn a_signal_ends_the_wait_unless_handlers_restart() {
    extern "C" fn nothing(_: i32) {}
    let engine = Engine::attached();
    let c = engine.connected();
    c.socket.set_nonblocking(false);
    // SAFETY: installs a handler that does nothing; the structure is zeroed and then filled in.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            // SAFETY: asks for the calling thread's own id.
            tell.send(unsafe { libc::pthread_self() }).expect("the test listens");
            c.recv(1)
        });
        let thread = told.recv().expect("the thread told");
        until(|| {
            // SAFETY: the thread has not been joined, so its id is good.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            reader.is_finished().then_some(())
        });
        assert_eq!(reader.join().expect("no panic"), Err(Errno::EINTR));
    });
}

/// As Linux: it waits as for one byte, and then finds that there is nothing to do.
#[test]
fn a_receive_of_nothing_ends_in_nothing_when_its_time_is_over() {
    let engine = Engine::attached();
    let c = engine.connected();
    c.socket.set_nonblocking(false);
    let mut time = [0; 16];
    time[8..].copy_from_slice(&1000i64.to_ne_bytes());
    assert_eq!(c.socket.set_option(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time), Ok(()));
    let flags = RecvFlags::default();
    assert_eq!(c.socket.recv(&mut [], flags), Ok(0));
    assert_eq!(c.recv(1), Err(Errno::EAGAIN));
}
