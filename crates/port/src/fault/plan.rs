//! Which faults, how often: the part of a port's specification behind the `?`.

use std::fmt;
use std::str::FromStr;

/// Why a plan was refused. The text says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultError {
    Unknown { key: String },
    BadValue { key: String, value: String, wanted: &'static str },
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultError::Unknown { key } => write!(
                f,
                "unknown option `{key}`: use vlan, or for faults drop, burst, reorder, dup, corrupt, delay_us, jitter_us, rate_kbit, queue_bytes, \
                 mark_bytes (each also with rx_ or tx_ in front), or seed; for example ?drop=1%&reorder=1%&seed=7"
            ),
            FaultError::BadValue { key, value, wanted } => {
                write!(f, "`{value}` is no value for `{key}`: write {wanted}")
            }
        }
    }
}

impl std::error::Error for FaultError {}

/// How often, in frames of a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate(u32);

impl Rate {
    pub const NEVER: Rate = Rate(0);

    pub const fn from_ppm(ppm: u32) -> Rate {
        Rate(if ppm > 1_000_000 { 1_000_000 } else { ppm })
    }

    pub const fn ppm(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 10_000.0)
    }
}

/// The faults of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// Frames that are lost.
    pub drop: Rate,
    /// They are lost so many in a row on average; 0: each by itself.
    pub burst: u32,
    /// Held back until up to three later frames have passed, or 2 ms.
    pub reorder: Rate,
    pub duplicate: Rate,
    /// One bit flipped where a checksum covers it; a frame without such a place is dropped instead.
    pub corrupt: Rate,
    /// Every frame takes this much longer,
    pub delay_us: u32,
    /// and up to this much more, but does not overtake the one before it.
    pub jitter_us: u32,
    /// Frames leave one after the other at this rate; 0: at once.
    pub rate_kbit: u32,
    /// Bytes that wait for that; a frame for which there is no room is dropped. 0: as many as there is memory for.
    pub queue_bytes: u32,
    /// When so many wait, a frame is marked if its sender can use that (RFC 3168). 0: never.
    pub mark_bytes: u32,
}

/// The faults of a link. `rx` is towards the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    pub rx: FaultRates,
    pub tx: FaultRates,
    pub seed: u64,
}

impl FaultRates {
    /// `false`: there is no such fault.
    fn set(&mut self, fault: &str, key: &str, value: &str) -> Result<bool, FaultError> {
        match fault {
            "drop" => self.drop = rate(key, value)?,
            "reorder" => self.reorder = rate(key, value)?,
            "dup" => self.duplicate = rate(key, value)?,
            "corrupt" => self.corrupt = rate(key, value)?,
            "burst" => self.burst = number(key, value, "a number of frames up to 1000", 1000)?,
            "delay_us" => self.delay_us = number(key, value, MICROSECONDS, MICROSECONDS_MAX)?,
            "jitter_us" => self.jitter_us = number(key, value, MICROSECONDS, MICROSECONDS_MAX)?,
            "rate_kbit" => self.rate_kbit = number(key, value, "kbit/s up to 100000000", 100_000_000)?,
            "queue_bytes" => self.queue_bytes = number(key, value, BYTES, BYTES_MAX)?,
            "mark_bytes" => self.mark_bytes = number(key, value, BYTES, BYTES_MAX)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

const MICROSECONDS: &str = "a number of microseconds up to 10000000";
const MICROSECONDS_MAX: u32 = 10_000_000;
const BYTES: &str = "a number of bytes up to 1000000000";
const BYTES_MAX: u32 = 1_000_000_000;

fn bad_value(key: &str, value: &str, wanted: &'static str) -> FaultError {
    FaultError::BadValue { key: key.to_owned(), value: value.to_owned(), wanted }
}

fn rate(key: &str, value: &str) -> Result<Rate, FaultError> {
    let percent = value.strip_suffix('%').unwrap_or(value).parse::<f64>().ok();
    match percent.filter(|percent| (0.0..=100.0).contains(percent)) {
        Some(percent) => Ok(Rate::from_ppm((percent * 10_000.0).round() as u32)),
        None => Err(bad_value(key, value, "a percentage from 0% to 100%, such as 0.5%")),
    }
}

fn number(key: &str, value: &str, wanted: &'static str, max: u32) -> Result<u32, FaultError> {
    value.parse().ok().filter(|n| *n <= max).ok_or_else(|| bad_value(key, value, wanted))
}

impl FromStr for FaultPlan {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<FaultPlan, FaultError> {
        let mut plan = FaultPlan::default();
        for part in text.split('&') {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let known = if key == "seed" {
                let wanted = "a whole number from 0 to 2^64-1";
                plan.seed = value.parse().map_err(|_| bad_value(key, value, wanted))?;
                true
            } else if let Some(fault) = key.strip_prefix("rx_") {
                plan.rx.set(fault, key, value)?
            } else if let Some(fault) = key.strip_prefix("tx_") {
                plan.tx.set(fault, key, value)?
            } else {
                plan.rx.set(key, key, value)? && plan.tx.set(key, key, value)?
            };
            if !known {
                return Err(FaultError::Unknown { key: key.to_owned() });
            }
        }
        Ok(plan)
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (direction, rates) in [("rx", &self.rx), ("tx", &self.tx)] {
            let named = [
                ("drop", rates.drop),
                ("reorder", rates.reorder),
                ("dup", rates.duplicate),
                ("corrupt", rates.corrupt),
            ];
            for (name, rate) in named {
                if rate != Rate::NEVER {
                    write!(f, "{direction}_{name}={rate}&")?;
                }
            }
            let numbers = [
                ("burst", rates.burst),
                ("delay_us", rates.delay_us),
                ("jitter_us", rates.jitter_us),
                ("rate_kbit", rates.rate_kbit),
                ("queue_bytes", rates.queue_bytes),
                ("mark_bytes", rates.mark_bytes),
            ];
            for (name, number) in numbers {
                if number != 0 {
                    write!(f, "{direction}_{name}={number}&")?;
                }
            }
        }
        write!(f, "seed={}", self.seed)
    }
}
