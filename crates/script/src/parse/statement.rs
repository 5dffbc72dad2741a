//! One statement: when, what, and of which connection.

use super::segment::{field, segment, span};
use super::words::{Words, Wrong, time};
use crate::script::{
    AckSpec, Act, Call, ConnName, Gives, InfoName, Open, Packet, SegmentSpec, SocketOption, StateName, Step,
    When,
};
use toe_abi::errno::Errno;
use toe_wire::icmp::{CODE_FRAGMENTATION_NEEDED, IcmpRepr};

const TIME: &str = "a time such as 40ms, 1.5s or 0.04";
const STATEMENTS: &str = "a statement (inject, expect, allow, quiet, open, listen, connect, connected, accept, send, read, \
                          shutdown, close, abort, unlisten, set, mark, error, state, info, new life, bind, receive, reply)";

/// The statement on this line; `None` when there is none.
pub(super) fn statement(words: &mut Words<'_>, line: usize) -> Result<Option<Step>, Wrong> {
    if words.is_empty() {
        return Ok(None);
    }
    let when = when(words)?;
    let conn = conn(words);
    let act = act(words)?;
    words.finish()?;
    if !matches!(act, Act::Expect(_) | Act::ExpectTrain { .. } | Act::Allow(_))
        && matches!(when, When::Between(..))
    {
        return Err(Wrong {
            column: 1,
            expected: "one time: only `expect` and `allow` can have a span of times".to_owned(),
            found: "two".to_owned(),
        });
    }
    Ok(Some(Step { line, conn, when, act }))
}

/// `+40ms` or `+40ms..60ms`.
fn when(words: &mut Words<'_>) -> Result<When, Wrong> {
    let Some(text) = words.peek().and_then(|word| word.strip_prefix('+')) else { return Ok(When::Now) };
    let when = match text.split_once("..") {
        None => time(text).map(When::After),
        Some((from, to)) => match (time(from), time(to)) {
            (Some(from), Some(to)) if from <= to => Some(When::Between(from, to)),
            _ => None,
        },
    };
    words.read("+TIME or +TIME..TIME, such as +40ms or +0.2..0.3", |_| when)
}

/// `b:`; the connection `a` needs no name.
fn conn(words: &mut Words<'_>) -> ConnName {
    let name = words.peek().and_then(|word| match word.as_bytes() {
        [letter @ b'a'..=b'h', b':'] => Some(ConnName(letter - b'a')),
        _ => None,
    });
    words.skip_if(name.is_some());
    name.unwrap_or(ConnName(0))
}

fn act(words: &mut Words<'_>) -> Result<Act, Wrong> {
    let Some(verb) = words.peek() else { return words.wrong(STATEMENTS) };
    words.next();
    if let Some(act) = crate::datagram::parse::act(verb, words)? {
        return Ok(Act::Datagram(act));
    }
    Ok(match verb {
        "inject" if words.take("icmp") => Act::Inject(icmp(words)?),
        "inject" => {
            let spec = segment(words)?;
            check_exact(words, &spec)?;
            Act::Inject(Packet::Segment(Box::new(spec)))
        }
        "expect" if words.take("train") => train(words)?,
        "expect" | "allow" => {
            let mut spec = segment(words)?;
            // All segments but the first have ACK, and a reset may.
            if spec.ack == AckSpec::None && !spec.no_ack && !spec.syn {
                spec.ack = if spec.rst { AckSpec::Either } else { AckSpec::Whatever };
            }
            if verb == "expect" { Act::Expect(spec) } else { Act::Allow(spec) }
        }
        "quiet" => Act::Quiet(words.read(TIME, time)?),
        "open" => Act::Open(open(words)?),
        "new" if words.take("life") => Act::NewLife,
        "new" => return words.wrong("`life`"),
        verb => match call(verb, words)? {
            Some(call) => Act::Call(call),
            None => {
                words.back();
                return words.wrong(STATEMENTS);
            }
        },
    })
}

/// `train 10 from 1 of 1000`.
fn train(words: &mut Words<'_>) -> Result<Act, Wrong> {
    let count = words.number("how many segments")?;
    if !words.take("from") {
        return words.wrong("`from` and the first sequence number");
    }
    let from = words.number("a sequence number")?;
    if !words.take("of") {
        return words.wrong("`of` and the bytes of each segment");
    }
    Ok(Act::ExpectTrain { count, from, len: words.number("bytes")? })
}

/// What is injected is known exactly.
fn check_exact(words: &Words<'_>, spec: &SegmentSpec) -> Result<(), Wrong> {
    use crate::script::Want;
    let ack = match spec.ack {
        AckSpec::Of(span) => Some(span),
        _ => None,
    };
    let wanted = |want: &Want<crate::script::Span>| match want {
        Want::Is(span) => Some(*span),
        _ => None,
    };
    let spans =
        [spec.seq, spec.len, spec.win, spec.urgent, spec.ttl, ack, wanted(&spec.mss), wanted(&spec.wscale)];
    if spans.into_iter().flatten().any(|span| span.exact().is_none())
        || spec.room.is_some()
        || spec.port.is_some()
    {
        return words.wrong("numbers, not spans, in what is injected (`win`, not `room`; no `port`)");
    }
    Ok(())
}

fn icmp(words: &mut Words<'_>) -> Result<Packet, Wrong> {
    let unreachable = |code| IcmpRepr::DestinationUnreachable { code, next_hop_mtu: 0 };
    let mut error = words.read("net, host, port, admin, too-big, time-exceeded or parameter", |word| {
        Some(match word {
            "net" => unreachable(0),
            "host" => unreachable(1),
            "port" => unreachable(3),
            "too-big" => unreachable(CODE_FRAGMENTATION_NEEDED),
            "admin" => unreachable(13),
            "time-exceeded" => IcmpRepr::TimeExceeded { code: 0 },
            "parameter" => IcmpRepr::ParameterProblem { code: 0, pointer: 0 },
            _ => return None,
        })
    })?;
    if let IcmpRepr::DestinationUnreachable { code: CODE_FRAGMENTATION_NEEDED, next_hop_mtu } = &mut error {
        *next_hop_mtu = words.number("the next hop's MTU")?;
    }
    if !words.take("quoting") {
        return words.wrong("`quoting` and a sequence number of the stack");
    }
    Ok(Packet::Icmp { error, quoted_seq: words.number("a sequence number")? })
}

fn open(words: &mut Words<'_>) -> Result<Open, Wrong> {
    let active = words.read("active or passive", |word| match word {
        "active" => Some(true),
        "passive" => Some(false),
        _ => None,
    })?;
    let mut open = Open { active, syn: SegmentSpec::default(), rtt_us: 0 };
    while !words.is_empty() {
        if words.take("rtt") {
            open.rtt_us = words.read(TIME, time)?;
        } else if !field(words, &mut open.syn)? {
            return words
                .wrong("rtt TIME, or a part of the far end's SYN (mss N, wscale N, sackok, ts, win N …)");
        }
    }
    Ok(open)
}

/// A call; `None` when the verb is none.
fn call(verb: &str, words: &mut Words<'_>) -> Result<Option<Call>, Wrong> {
    Ok(Some(match verb {
        "listen" => {
            let backlog = if words.take("backlog") { words.number("a number")? } else { 64 };
            Call::Listen { backlog }
        }
        "connect" => {
            let from = if words.take("from") { words.number("a port")? } else { 0 };
            let fast = if words.take("sending") { Some(words.number("bytes")?) } else { None };
            Call::Connect { from, fast }
        }
        "connected" => Call::Connected(gives(words)?),
        "accept" => Call::Accept(gives(words)?),
        "send" => {
            let len = words.number("how many bytes to send")?;
            let (more, urgent) = (words.take("more"), words.take("urgent"));
            let end_of_record = words.take("eor");
            Call::Send { len, more, urgent, end_of_record, gives: gives(words)? }
        }
        "read" if words.peek() == Some("gives") => Call::Read { len: 1, gives: gives(words)? },
        "read" => {
            Call::Read { len: words.number("how many bytes to read, or `gives`")?, gives: gives(words)? }
        }
        "shutdown" => Call::Shutdown { read: words.take("read"), gives: gives(words)? },
        "close" => Call::Close,
        "abort" => Call::Abort,
        "unlisten" => Call::CloseListener,
        "set" => {
            let option = words.read(OPTIONS_EXPECTED, option)?;
            Call::Set(option, words.read("a number, on or off", on_off)?)
        }
        "mark" => Call::AtMark(words.read("yes or no", |word| match word {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        })?),
        "error" => Call::ErrorIs(words.read("none or the name of an error", errno_or_none)?),
        "state" => Call::State(words.read("a state of RFC 9293 such as FIN-WAIT-1", state)?),
        "info" => {
            let name = words.read("cwnd, ssthresh, srtt, rto, mss or retransmits", info)?;
            Call::Info(name, words.read("a number or a span", span)?)
        }
        _ => return Ok(None),
    }))
}

fn gives(words: &mut Words<'_>) -> Result<Gives, Wrong> {
    if !words.take("gives") {
        return Ok(Gives::Ok);
    }
    words.read("nothing, eof or the name of an error such as ECONNRESET", |word| match word {
        "nothing" => Some(Gives::Nothing),
        "eof" => Some(Gives::EndOfFile),
        word => errno(word).map(Gives::Error),
    })
}

/// The errors that calls of a script can give.
const ERRORS: [(&str, Errno); 14] = [
    ("EPIPE", Errno::EPIPE),
    ("EPROTO", Errno::EPROTO),
    ("EINVAL", Errno::EINVAL),
    ("EADDRINUSE", Errno::EADDRINUSE),
    ("EADDRNOTAVAIL", Errno::EADDRNOTAVAIL),
    ("ENETUNREACH", Errno::ENETUNREACH),
    ("EHOSTUNREACH", Errno::EHOSTUNREACH),
    ("ECONNABORTED", Errno::ECONNABORTED),
    ("ECONNRESET", Errno::ECONNRESET),
    ("ENOTCONN", Errno::ENOTCONN),
    ("ETIMEDOUT", Errno::ETIMEDOUT),
    ("ECONNREFUSED", Errno::ECONNREFUSED),
    ("EINPROGRESS", Errno::EINPROGRESS),
    ("EMSGSIZE", Errno::EMSGSIZE),
];

fn errno(word: &str) -> Option<Errno> {
    ERRORS.iter().find(|(name, _)| *name == word).map(|(_, errno)| *errno)
}

fn errno_or_none(word: &str) -> Option<Errno> {
    if word == "none" { Some(Errno::OK) } else { errno(word) }
}

/// The name of an error, for reports.
pub(crate) fn errno_name(errno: Errno) -> String {
    let name = ERRORS.iter().find(|(_, known)| *known == errno).map(|(name, _)| (*name).to_owned());
    name.unwrap_or_else(|| if errno.is_ok() { "none".to_owned() } else { format!("errno {}", errno.0) })
}

fn on_off(word: &str) -> Option<u32> {
    match word {
        "on" => Some(1),
        "off" => Some(0),
        word => word.parse().ok(),
    }
}

const OPTIONS_EXPECTED: &str = "nodelay, cork, keepalive, keepidle, keepintvl, keepcnt, user-timeout (in ms), rcvbuf, ttl, recverr, \
     defer-accept or notsent-lowat";

fn option(word: &str) -> Option<SocketOption> {
    Some(match word {
        "nodelay" => SocketOption::NoDelay,
        "cork" => SocketOption::Cork,
        "keepalive" => SocketOption::KeepAlive,
        "keepidle" => SocketOption::KeepIdle,
        "keepintvl" => SocketOption::KeepInterval,
        "keepcnt" => SocketOption::KeepCount,
        "user-timeout" => SocketOption::UserTimeoutMs,
        "rcvbuf" => SocketOption::ReceiveBuffer,
        "ttl" => SocketOption::TimeToLive,
        "recverr" => SocketOption::ReceiveErrors,
        "defer-accept" => SocketOption::DeferAccept,
        "notsent-lowat" => SocketOption::NotSentLowWater,
        _ => return None,
    })
}

fn info(word: &str) -> Option<InfoName> {
    Some(match word {
        "cwnd" => InfoName::Cwnd,
        "ssthresh" => InfoName::Ssthresh,
        "srtt" => InfoName::Srtt,
        "rto" => InfoName::Rto,
        "mss" => InfoName::Mss,
        "retransmits" => InfoName::Retransmits,
        "ca-state" => InfoName::CaState,
        _ => return None,
    })
}

const STATES: [(&str, StateName); 10] = [
    ("CLOSED", StateName::Closed),
    ("SYN-SENT", StateName::SynSent),
    ("SYN-RECEIVED", StateName::SynReceived),
    ("ESTABLISHED", StateName::Established),
    ("FIN-WAIT-1", StateName::FinWait1),
    ("FIN-WAIT-2", StateName::FinWait2),
    ("CLOSE-WAIT", StateName::CloseWait),
    ("CLOSING", StateName::Closing),
    ("LAST-ACK", StateName::LastAck),
    ("TIME-WAIT", StateName::TimeWait),
];

fn state(word: &str) -> Option<StateName> {
    STATES.iter().find(|(name, _)| *name == word).map(|(_, state)| *state)
}

impl StateName {
    /// The state that `ss` spells so.
    pub(crate) fn of_ss(name: &str) -> StateName {
        match name {
            "SYN-RECV" => StateName::SynReceived,
            "ESTAB" => StateName::Established,
            name => state(name).unwrap_or(StateName::Closed),
        }
    }
}

impl std::fmt::Display for StateName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(STATES.iter().find(|(_, state)| state == self).map_or("?", |(name, _)| name))
    }
}
