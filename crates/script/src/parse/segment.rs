//! What a script says of a segment. Used for `inject`, `expect` and `open`.

use super::words::{Words, Wrong};
use crate::script::{AckSpec, Cookie, Ecn, SegmentSpec, Span, StampSpec, Want};

const FIELDS: &str = "a part of a segment (syn, ack, fin, rst, psh, ece, cwr, urgent N, seq N, ack N, len N, win N, \
                      room N, mss N, wscale N, sackok, sack A-B, ts, cookie, option HEX, ecn X, ttl N, port N, df, \
                      bad-checksum, altered, or `no` with one of them)";

/// The segment that the rest of the line describes.
pub(super) fn segment(words: &mut Words<'_>) -> Result<SegmentSpec, Wrong> {
    let mut spec = SegmentSpec::default();
    while !words.is_empty() {
        if !field(words, &mut spec)? {
            return words.wrong(FIELDS);
        }
    }
    Ok(spec)
}

/// Reads one part of a segment; `false` when the next word is none.
pub(super) fn field(words: &mut Words<'_>, spec: &mut SegmentSpec) -> Result<bool, Wrong> {
    if flag(words, spec) {
        return Ok(true);
    }
    let Some(word) = words.peek() else { return Ok(false) };
    let known =
        ["no", "ack", "seq", "len", "win", "room", "urgent", "ttl", "port", "ecn", "mss", "wscale", "sack"];
    let known = known.contains(&word) || ["ts", "cookie", "option"].contains(&word);
    if !known {
        return Ok(false);
    }
    words.next();
    match word {
        "no" => absent(words, spec)?,
        "ack" => {
            let number = words.peek().and_then(span);
            words.skip_if(number.is_some());
            spec.ack = number.map_or(AckSpec::Whatever, AckSpec::Of);
        }
        "seq" => spec.seq = Some(number(words)?),
        "len" => spec.len = Some(number(words)?),
        "win" => spec.win = Some(number(words)?),
        "room" => spec.room = Some(number(words)?),
        "urgent" => spec.urgent = Some(number(words)?),
        "ttl" => spec.ttl = Some(number(words)?),
        "port" => spec.port = Some(number(words)?),
        "ecn" => spec.ecn = Some(words.read("none, ect0, ect1, ect or ce", ecn)?),
        "mss" => spec.mss = Want::Is(number(words)?),
        "wscale" => spec.wscale = Want::Is(number(words)?),
        "sack" => spec.sack = Want::Is(blocks(words)?),
        "ts" => spec.stamps = Want::Is(stamps(words)?),
        "cookie" => {
            let expected = "`request`, `given` or the cookie's bytes in hexadecimal";
            spec.cookie = Want::Is(words.read(expected, cookie)?);
        }
        _ => {
            let bytes = words.read("option bytes in hexadecimal", hex)?;
            spec.raw_options.extend_from_slice(&bytes);
        }
    }
    Ok(true)
}

/// Parts of one word.
fn flag(words: &mut Words<'_>, spec: &mut SegmentSpec) -> bool {
    match words.peek() {
        Some("syn") => spec.syn = true,
        Some("fin") => spec.fin = true,
        Some("rst") => spec.rst = true,
        Some("ece") => spec.ece = true,
        Some("cwr") => spec.cwr = true,
        Some("psh") => spec.psh = Some(true),
        Some("sackok") => spec.sackok = Want::Is(()),
        Some("df") => spec.dont_fragment = Some(true),
        Some("bad-checksum") => spec.bad_checksum = true,
        Some("altered") => spec.altered = true,
        _ => return false,
    }
    words.next();
    true
}

fn absent(words: &mut Words<'_>, spec: &mut SegmentSpec) -> Result<(), Wrong> {
    match words.peek() {
        Some("ack") => spec.no_ack = true,
        Some("psh") => spec.psh = Some(false),
        Some("df") => spec.dont_fragment = Some(false),
        Some("mss") => spec.mss = Want::Absent,
        Some("wscale") => spec.wscale = Want::Absent,
        Some("sackok") => spec.sackok = Want::Absent,
        Some("sack") => spec.sack = Want::Absent,
        Some("ts") => spec.stamps = Want::Absent,
        Some("cookie") => spec.cookie = Want::Absent,
        _ => return words.wrong("ack, psh, df, mss, wscale, sackok, sack, ts or cookie"),
    }
    words.next();
    Ok(())
}

fn number(words: &mut Words<'_>) -> Result<Span, Wrong> {
    words.read("a number, a span such as 10..20, 10.. or ..20, or `any`", span)
}

/// `7`, `1..9`, `1..`, `..9`, `any`.
pub(super) fn span(word: &str) -> Option<Span> {
    if word == "any" {
        return Some(Span::ANY);
    }
    let Some((from, to)) = word.split_once("..") else { return word.parse().ok().map(Span::one) };
    let end = |text: &str, open| if text.is_empty() { Some(open) } else { text.parse().ok() };
    let span = Span { from: end(from, i64::MIN)?, to: end(to, i64::MAX)? };
    (span.from <= span.to && word != "..").then_some(span)
}

fn ecn(word: &str) -> Option<Ecn> {
    Some(match word {
        "none" => Ecn::None,
        "ect0" => Ecn::Ect0,
        "ect1" => Ecn::Ect1,
        "ect" => Ecn::Ect,
        "ce" => Ecn::Ce,
        _ => return None,
    })
}

fn blocks(words: &mut Words<'_>) -> Result<Vec<(i64, i64)>, Wrong> {
    let mut blocks = vec![words.read("a range of sequence numbers such as 1461-2921", block)?];
    while let Some(block) = words.peek().and_then(block) {
        words.next();
        blocks.push(block);
    }
    Ok(blocks)
}

fn block(word: &str) -> Option<(i64, i64)> {
    let (left, right) = word.rsplit_once('-')?;
    Some((left.parse().ok()?, right.parse().ok()?))
}

/// Nothing, or the value, or the value and the echo; `auto` leaves either to the runner.
fn stamps(words: &mut Words<'_>) -> Result<StampSpec, Wrong> {
    let mut one = || {
        let word = words.peek()?;
        let value = if word == "auto" { None } else { Some(span(word)?) };
        words.next();
        Some(value)
    };
    let value = one();
    let echo = if value.is_some() { one() } else { None };
    Ok(StampSpec { value: value.flatten(), echo: echo.flatten() })
}

fn cookie(word: &str) -> Option<Cookie> {
    match word {
        "request" => Some(Cookie::Request),
        "given" => Some(Cookie::Given),
        _ => hex(word).map(Cookie::Bytes),
    }
}

fn hex(word: &str) -> Option<Vec<u8>> {
    if word.is_empty() || !word.len().is_multiple_of(2) || !word.is_ascii() {
        return None;
    }
    (0..word.len()).step_by(2).map(|at| u8::from_str_radix(&word[at..at + 2], 16).ok()).collect()
}
