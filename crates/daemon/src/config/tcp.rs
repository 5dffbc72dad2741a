//! The table `[tcp]`, and the flags of the same names: what connections do when their program says nothing.
//!
//! A value is a field of [`TcpValues`], which the file and the command line both fill, and a line of [`check`].

use super::given::{ConfigError, Given, Setting};
use serde::Deserialize;
use std::ops::Range;
use toe_engine::{AlgorithmName, EcnMode, FastOpenMode, SynCookies, TcpConfig};

/// What either of them sets. The comments are the help of `toed`.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpValues {
    /// Congestion control of connections whose program chooses none: reno, cubic, dctcp or bbr.
    #[arg(long, value_name = "NAME")]
    congestion: Option<Setting<String>>,
    /// Explicit congestion notification: off, passive or on.
    #[arg(long, value_name = "MODE")]
    ecn: Option<Setting<String>>,
    /// TCP Fast Open: off, client, server or both.
    #[arg(long, value_name = "MODE")]
    fast_open: Option<Setting<String>>,
    /// SYN cookies: off, on or always.
    #[arg(long, value_name = "MODE")]
    syn_cookies: Option<Setting<String>>,
    /// A reset does not end TIME_WAIT: off or on.
    #[arg(long, value_name = "MODE")]
    rfc1337: Option<Setting<String>>,
}

/// The flags win over the file.
pub(super) fn check(
    flags: TcpValues,
    file: TcpValues,
    origin: &dyn Fn(Range<usize>) -> String,
) -> Result<TcpConfig, ConfigError> {
    let mut tcp = TcpConfig::DEFAULT;
    let word = Setting::given(flags.congestion, "--congestion", file.congestion, origin);
    let known = AlgorithmName::ALL.map(|name| (name.as_str(), name));
    set(&mut tcp.congestion, word, "the congestion control", &known)?;
    let word = Setting::given(flags.ecn, "--ecn", file.ecn, origin);
    set(&mut tcp.ecn, word, "ecn", &EcnMode::ALL.map(|mode| (mode.as_str(), mode)))?;
    let word = Setting::given(flags.fast_open, "--fast-open", file.fast_open, origin);
    set(&mut tcp.fast_open, word, "fast_open", &FastOpenMode::ALL.map(|mode| (mode.as_str(), mode)))?;
    let word = Setting::given(flags.syn_cookies, "--syn-cookies", file.syn_cookies, origin);
    set(&mut tcp.syn_cookies, word, "syn_cookies", &SynCookies::ALL.map(|mode| (mode.as_str(), mode)))?;
    let word = Setting::given(flags.rfc1337, "--rfc1337", file.rfc1337, origin);
    set(&mut tcp.rfc1337, word, "rfc1337", &[("off", false), ("on", true)])?;
    Ok(tcp)
}

/// What a word stands for among those that are known.
fn set<T: Copy>(
    value: &mut T,
    word: Option<Given<String>>,
    what: &str,
    known: &[(&str, T)],
) -> Result<(), ConfigError> {
    let Some(given) = word else { return Ok(()) };
    let Some((_, meant)) = known.iter().find(|(word, _)| *word == given.value) else {
        let names = known.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        return Err(given.bad(format!("{what} cannot be {:?}; give one of {names}", given.value)));
    };
    *value = *meant;
    Ok(())
}
