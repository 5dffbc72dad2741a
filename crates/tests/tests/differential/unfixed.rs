//! Calls that are left out while what they would show is not mended. The numbers are those of the list of findings.

use crate::call::{Arg, Call};
use crate::choose::Chooser;
use crate::known::Case;
use crate::linux::*;
use crate::pair::PORTS;
use crate::stack::Seen;
use crate::world::{Kind, Known};
use std::sync::OnceLock;

/// The call would show what is known.
pub fn shows(call: &Call, chooser: &Chooser<'_>) -> bool {
    let known = chooser.known(call.number(0));
    let is = |wanted: &dyn Fn(&Known) -> bool| known.as_ref().is_some_and(wanted);
    let n = |at: usize| call.number(at);
    let empty = |first: usize| (first..call.args.len()).any(|at| n(at) == 0);
    let all = &chooser.world.known;
    let copied = |one: &Known| chooser.world.copied.contains(&one.object);
    let elsewhere = |one: &Known| all.iter().any(|other| other.object == one.object && other.who != one.who);
    let kind = |fd: i64, kind: Kind| chooser.known(fd).is_none_or(|one| one.kind == kind);
    let option = |level: i64, names: &[i64]| n(1) == level && names.contains(&n(2));
    let cases: &[(u32, bool)] = match call.name.as_str() {
        "fork" | "pass" => &[(2, all.iter().any(Known::is_closed)), (7, all.iter().any(Known::listens))],
        "listen" => &[(16, chooser.world.alive[1] || chooser.world.alive[2])],
        "shutdown" => &[(8, is(&Known::listens)), (20, n(1) != 1), (35, !is(&Known::is_connected))],
        "connect" => &[
            (34, is(&|one| one.is_connected() && one.seen.state != 1)),
            (40, n(1) == 6),
            (9, is(&Known::listens) && n(1) == 5),
            (11, call.args.get(2) == Some(&Arg::Number(0)) || is(&|one| one.seen.ready & POLLERR != 0)),
            (21, is(&|one| one.is_closed() && (one.seen.own_port != 0 || copied(one)))),
        ],
        "recvmmsg" => &[
            (36, n(1) & MSG_TRUNC != 0 && is(&|one| one.seen.ready & (POLLERR | POLLRDHUP) != 0)),
            (28, n(1) & MSG_WAITALL != 0 && n(1) & MSG_PEEK != 0),
            (10, n(2) != 0),
            (18, empty(3) || is(&|one| one.seen.ready & POLLRDHUP != 0)),
        ],
        "sendmmsg" => &[(18, empty(3)), (33, is(&|one| one.seen.ready & POLLRDHUP != 0))],
        "fcntl" if n(1) == F_SETFL => &[(12, n(2) & (O_APPEND | O_ASYNC) != 0), (13, is(&elsewhere))],
        "ioctl" if n(1) == FIONBIO => &[(13, is(&elsewhere))],
        "ioctl" if n(1) == SIOCOUTQ => &[(32, is(&|one| one.seen.state != 1)), (6, call.args.len() == 2)],
        "ioctl" => &[(6, call.args.len() == 2)],
        "pwrite" | "pread" => &[(5, n(2) < 0)],
        "splice" => &[(14, kind(n(0), Kind::Tcp) || kind(n(1), Kind::Tcp))],
        "fsync" => &[(14, true)],
        "sendfile" => {
            &[(14, is(&Known::listens) || !chooser.known(n(1)).is_some_and(|one| one.kind == Kind::File))]
        }
        "recv" | "recvfrom" => &[
            (36, n(2) & MSG_TRUNC != 0 && is(&|one| one.seen.ready & (POLLERR | POLLRDHUP) != 0)),
            (14, n(1) == 0),
            (28, n(2) & MSG_WAITALL != 0 && n(2) & MSG_PEEK != 0),
        ],
        "recvmsg" => &[
            (36, n(1) & MSG_TRUNC != 0 && is(&|one| one.seen.ready & (POLLERR | POLLRDHUP) != 0)),
            (14, (2..call.args.len()).all(|at| n(at) == 0)),
            (28, n(1) & MSG_WAITALL != 0 && n(1) & MSG_PEEK != 0),
        ],
        "setopt" => &[
            (14, [0, 77].contains(&n(1)) || option(IPPROTO_TCP, &[TCP_MAXSEG])),
            (22, option(SOL_SOCKET, &[SO_SNDLOWAT])),
            (35, option(IPPROTO_TCP, &[TCP_SYNCNT])),
            (40, option(IPPROTO_TCP, &[TCP_USER_TIMEOUT])),
            (41, option(IPPROTO_TCP, &[TCP_CORK])),
            (29, option(SOL_SOCKET, &[SO_LINGER]) && n(5) < 0),
        ],
        "getopt" => &[
            (14, [0, 77].contains(&n(1))),
            (35, option(IPPROTO_TCP, &[TCP_SYNCNT])),
            (40, option(IPPROTO_TCP, &[TCP_USER_TIMEOUT])),
            (30, option(SOL_SOCKET, &[SO_REUSEADDR, SO_REUSEPORT, SO_OOBINLINE, SO_BROADCAST, SO_PRIORITY])),
        ],
        "dup3" => &[(15, n(2) == 1)],
        "dup2" => &[(15, n(1) < 0)],
        "writev" => &[(34, call.args.len() == 2 || (2..call.args.len()).all(|at| n(at) == 0))],
        "sendmsg" => &[(34, (3..call.args.len()).all(|at| n(at) == 0))],
        "write" | "send" | "sendto" => &[(34, n(1) == 0)],
        "bind" => &[
            (34, is(&Known::is_connected)),
            (37, is(&|one| one.is_closed() && one.seen.own_port != 0)),
            (38, n(2) != 0 && all.iter().any(|one| one.is_connected() && PORTS.contains(&one.seen.own_port))),
            (17, n(1) == 2),
        ],
        "getpeername" => &[(25, true)],
        "epoll_ctl" => &[
            (43, !chooser.known(n(0)).is_some_and(|one| one.kind == Kind::Epoll)),
            (45, is(&elsewhere)),
            (46, is(&copied)),
            (14, !chooser.known(n(0)).is_some_and(|one| one.kind == Kind::Epoll)),
            (24, chooser.known(n(2)).is_some_and(|one| one.is_closed())),
            (27, kind(n(2), Kind::Epoll)),
        ],
        _ => &[],
    };
    cases.iter().any(|(finding, shows)| *shows && !mended().contains(finding))
}

/// What `TOE_DIFFER_MENDED` lists: these are looked for again.
fn mended() -> &'static [u32] {
    static MENDED: OnceLock<Vec<u32>> = OnceLock::new();
    MENDED.get_or_init(|| {
        let list = std::env::var("TOE_DIFFER_MENDED").unwrap_or_default();
        list.split(',').filter_map(|number| number.trim().parse().ok()).collect()
    })
}

/// Two answers differ as is known.
pub fn answered(case: &Case<'_>) -> bool {
    let errors = (case.kernel.errno, case.engine.errno);
    let state = case.is_option(TCP_INFO) && case.both_succeed() && !mended().contains(&3);
    state
        || !mended().contains(&4)
            && case.call.is(&["connect"])
            && [(0, 106), (EINPROGRESS, 0)].contains(&errors)
}

/// A descriptor is seen differently as is known: findings 1, 3 and 42.
pub fn seen(kernel: &Seen, engine: &Seen) -> bool {
    let held_back = kernel.state == CLOSE && engine.unread > kernel.unread;
    let alike = (kernel.ready, kernel.flags) == (engine.ready, engine.flags)
        && (kernel.unread == engine.unread || held_back);
    let states =
        ![0, ESTABLISHED, LISTEN].contains(&kernel.state) && [0, ESTABLISHED].contains(&engine.state);
    let is_new = kernel.state == CLOSE && kernel.own_port == 0 && engine.state == CLOSE;
    alike && (states && !mended().contains(&3) || is_new && !mended().contains(&1))
}
