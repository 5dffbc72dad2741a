//! The lines before the first blank one: `key: value`.

use super::words::{Words, Wrong, time};
use crate::script::{Header, OnLinux, Setting, SettingName};

/// The far end's initial sequence number when a script names none: its stream passes 2^32 after 46 bytes more, so that
/// every script tests that as well.
const ISN: u32 = u32::MAX - 10_046;
const TAIL_US: u64 = 50_000;

const KEYS: &str = "rfc:, what:, linux:, pending:, setup:, isn:, mtu: or tail:";

/// The header of a script's lines, and how many lines it takes.
pub(super) fn header(lines: &[&str]) -> Result<(Header, usize), (usize, Wrong)> {
    let mut header = Header {
        rfc: String::new(),
        what: String::new(),
        linux: OnLinux::Yes,
        pending: None,
        setup: Vec::new(),
        isn: ISN,
        mtu: 1500,
        tail_us: TAIL_US,
    };
    let mut said_linux = false;
    let mut at = 0;
    while let Some(line) = lines.get(at).filter(|line| !line.trim().is_empty()) {
        let said = line.trim_start().starts_with('#');
        if !said {
            said_linux |= line.starts_with("linux:");
            one(line, &mut header).map_err(|wrong| (at, wrong))?;
        }
        at += 1;
    }
    let missing = [
        ("rfc: with the RFC and its section", header.rfc.is_empty()),
        ("what: with the behaviour", header.what.is_empty()),
        ("linux: with what Linux does", !said_linux),
    ];
    match missing.iter().find(|(_, is_missing)| *is_missing) {
        Some((what, _)) => {
            let expected = format!("a line {what}, before the first blank line");
            Err((at, Wrong { column: 1, expected, found: "the end of the header".to_owned() }))
        }
        None => Ok((header, at)),
    }
}

fn one(line: &str, header: &mut Header) -> Result<(), Wrong> {
    let mut words = Words::of(line);
    let wrong = |words: &Words<'_>, expected: &str| words.wrong(expected);
    let Some(key) = words.peek() else { return Ok(()) };
    let value = line.split_once(':').map_or("", |(_, value)| value).trim().to_owned();
    if !KEYS.split([',', ' ']).any(|known| known == key) {
        return wrong(&words, KEYS);
    }
    words.next();
    match key {
        "rfc:" | "what:" | "pending:" => {
            if value.is_empty() {
                return words.wrong("text");
            }
            match key {
                "rfc:" => header.rfc = value,
                "what:" => header.what = value,
                _ => header.pending = Some(value),
            }
            return Ok(());
        }
        "linux:" => return on_linux(&mut words, &value).map(|linux| header.linux = linux),
        "setup:" => {
            let name = words.read(SETTINGS_EXPECTED, setting)?;
            let value = words.read("a value", |word| Some(word.to_owned()))?;
            header.setup.push(Setting { name, value });
        }
        "isn:" => header.isn = words.number("a number below 2^32")?,
        "mtu:" => header.mtu = words.number("bytes")?,
        _ => header.tail_us = words.read("a time such as 50ms or 1.5s", time)?,
    }
    words.finish()
}

fn on_linux(words: &mut Words<'_>, value: &str) -> Result<OnLinux, Wrong> {
    let expected = "yes, slow, no \"reason\" or differs \"reason\"";
    let reason = value.split_once('"').and_then(|(_, rest)| rest.strip_suffix('"'));
    let with_reason = |kind: fn(String) -> OnLinux, words: &mut Words<'_>| match reason {
        Some(reason) if !reason.is_empty() => Ok(kind(reason.to_owned())),
        _ => {
            words.next();
            words.wrong("the reason in quotation marks")
        }
    };
    match words.peek() {
        Some("yes") if value == "yes" => Ok(OnLinux::Yes),
        Some("slow") if value == "slow" => Ok(OnLinux::Slow),
        Some("no") => with_reason(OnLinux::No, words),
        Some("differs") => with_reason(OnLinux::Differs, words),
        _ => words.wrong(expected),
    }
}

const SETTINGS_EXPECTED: &str = "ecn, congestion, fastopen, syncookies, sack, timestamps, wscale, syn-retries, \
                                 synack-retries, data-retries, slow-start-after-idle, challenge-limit, fin-timeout or gso";

fn setting(word: &str) -> Option<SettingName> {
    Some(match word {
        "ecn" => SettingName::Ecn,
        "congestion" => SettingName::Congestion,
        "fastopen" => SettingName::FastOpen,
        "syncookies" => SettingName::SynCookies,
        "rfc1337" => SettingName::Rfc1337,
        "sack" => SettingName::Sack,
        "timestamps" => SettingName::Timestamps,
        "wscale" => SettingName::WindowScaling,
        "syn-retries" => SettingName::SynRetries,
        "synack-retries" => SettingName::SynAckRetries,
        "data-retries" => SettingName::DataRetries,
        "slow-start-after-idle" => SettingName::SlowStartAfterIdle,
        "challenge-limit" => SettingName::ChallengeLimit,
        "fin-timeout" => SettingName::FinTimeout,
        "gso" => SettingName::Gso,
        _ => return None,
    })
}
