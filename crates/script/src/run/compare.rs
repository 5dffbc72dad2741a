//! A segment of the stack against what the script expects.

use super::conn::{Conn, flags};
use crate::packet::{ACK, PSH, Segment, TcpOption, flag_words};
use crate::script::{AckSpec, Cookie, SegmentSpec, Span, Want};

/// Each difference as text; none when the segment is what was expected.
pub(super) fn differences(conn: &Conn, spec: &SegmentSpec, got: &Segment) -> Vec<String> {
    let mut found = Differences(Vec::new());
    let open = if spec.ack == AckSpec::Either { PSH | ACK } else { PSH };
    let (want_flags, got_flags) = (flags(spec) & !open, got.flags & !open);
    if want_flags != got_flags {
        let words = |flags| match flag_words(flags) {
            none if none.is_empty() => "none".to_owned(),
            words => words,
        };
        found.0.push(format!("flags: {} instead of {}", words(got_flags), words(want_flags)));
    }
    if spec.psh.is_some_and(|psh| psh != got.has(PSH)) {
        found.0.push(format!("psh: {}", if got.has(PSH) { "there" } else { "not there" }));
    }
    found.number("seq", spec.seq, conn.seq_of_stack(got));
    if let AckSpec::Of(span) = spec.ack {
        found.number("ack", Some(span), conn.ack_of_stack(got));
    }
    let len = spec.len.unwrap_or(Span::one(0));
    found.number("len", Some(len), got.payload.len() as i64);
    found.number("win", spec.win, i64::from(got.window));
    found.number("room", spec.room, conn.room(got));
    found.number("urgent", spec.urgent, i64::from(got.urgent));
    found.number("port", spec.port, i64::from(got.src_port));
    found.number("ttl", spec.ttl, i64::from(got.ttl));
    if spec.dont_fragment.is_some_and(|df| df != got.dont_fragment) {
        found.0.push(format!("df: {}", if got.dont_fragment { "there" } else { "not there" }));
    }
    if let Some(ecn) = spec.ecn.filter(|ecn| !ecn.matches(got.ecn)) {
        found.0.push(format!("ecn: codepoint {:02b} instead of {ecn:?}", got.ecn));
    }
    options(&mut found, conn, spec, got);
    if let Some(at) = conn.wrong_byte(got) {
        found.0.push(format!("payload: byte {at} is not what the program sent there"));
    }
    found.0
}

struct Differences(Vec<String>);

impl Differences {
    fn number(&mut self, name: &str, want: Option<Span>, got: i64) {
        if let Some(want) = want.filter(|want| !want.contains(got)) {
            self.0.push(format!("{name}: {got} instead of {want}"));
        }
    }

    /// Compares an option that may be wanted, unwanted or of no concern.
    fn option<T, G>(
        &mut self,
        name: &str,
        want: &Want<T>,
        got: Option<G>,
        compare: impl FnOnce(&T, G) -> Option<String>,
    ) {
        match (want, got) {
            (Want::Unsaid, _) | (Want::Absent, None) => {}
            (Want::Absent, Some(_)) => self.0.push(format!("{name}: there")),
            (Want::Is(_), None) => self.0.push(format!("{name}: not there")),
            (Want::Is(want), Some(got)) => {
                self.0.extend(compare(want, got).map(|text| format!("{name}: {text}")))
            }
        }
    }
}

fn number(want: &Span, got: i64) -> Option<String> {
    (!want.contains(got)).then(|| format!("{got} instead of {want}"))
}

fn options(found: &mut Differences, conn: &Conn, spec: &SegmentSpec, got: &Segment) {
    let all = &got.options;
    let mss = all.iter().find_map(|o| if let TcpOption::Mss(mss) = o { Some(*mss) } else { None });
    found.option("mss", &spec.mss, mss, |want, got| number(want, i64::from(got)));
    let scale = all.iter().find_map(|o| if let TcpOption::WindowScale(n) = o { Some(*n) } else { None });
    found.option("wscale", &spec.wscale, scale, |want, got| number(want, i64::from(got)));
    let permitted = all.contains(&TcpOption::SackPermitted).then_some(());
    found.option("sackok", &spec.sackok, permitted, |(), ()| None);
    let stamps =
        all.iter().find_map(|o| if let TcpOption::Timestamps(v, e) = o { Some((*v, *e)) } else { None });
    found.option("ts", &spec.stamps, stamps, |want, (value, echo)| {
        let value = conn.clock_of_stack(value);
        let wrong_value =
            want.value.and_then(|want| number(&want, value)).map(|text| format!("value {text}"));
        let wrong_echo =
            want.echo.and_then(|want| number(&want, i64::from(echo))).map(|text| format!("echo {text}"));
        wrong_value.or(wrong_echo)
    });
    let blocks = all.iter().find_map(|o| if let TcpOption::Sack(blocks) = o { Some(blocks) } else { None });
    found.option("sack", &spec.sack, blocks, |want, got| {
        let got: Vec<_> = got.iter().map(|(l, r)| (conn.far_relative(*l), conn.far_relative(*r))).collect();
        (got != *want).then(|| format!("{} instead of {}", ranges(&got), ranges(want)))
    });
    let cookie =
        all.iter().find_map(|o| if let TcpOption::FastOpen(cookie) = o { Some(cookie) } else { None });
    found.option("cookie", &spec.cookie, cookie, |want, got| {
        let is_it = match want {
            Cookie::Request => got.is_empty(),
            Cookie::Given => !got.is_empty(),
            Cookie::Bytes(bytes) => bytes == got,
        };
        (!is_it).then(|| TcpOption::FastOpen(got.clone()).to_string())
    });
    if !spec.raw_options.is_empty() {
        found.0.push("option: only known ones can be expected".to_owned());
    }
}

fn ranges(ranges: &[(i64, i64)]) -> String {
    let all: Vec<String> = ranges.iter().map(|(left, right)| format!("{left}-{right}")).collect();
    all.join(" ")
}
