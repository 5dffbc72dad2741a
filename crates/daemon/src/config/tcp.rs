//! The table `[tcp]`: what connections do when their program says nothing.

use super::given::{ConfigError, Given};
use serde::Deserialize;
use toe_engine::{AlgorithmName, EcnMode, FastOpenMode, SynCookies, TcpConfig};
use toml::Spanned;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileTcp {
    pub(super) congestion: Option<Spanned<String>>,
    pub(super) ecn: Option<Spanned<String>>,
    pub(super) fast_open: Option<Spanned<String>>,
    pub(super) syn_cookies: Option<Spanned<String>>,
    pub(super) rfc1337: Option<Spanned<String>>,
}

/// The same, of the file or of flags.
pub(super) struct GivenTcp {
    pub(super) congestion: Option<Given<String>>,
    pub(super) ecn: Option<Given<String>>,
    pub(super) fast_open: Option<Given<String>>,
    pub(super) syn_cookies: Option<Given<String>>,
    pub(super) rfc1337: Option<Given<String>>,
}

pub(super) fn check(given: GivenTcp) -> Result<TcpConfig, ConfigError> {
    let mut tcp = TcpConfig::default();
    if let Some(given) = given.congestion {
        let names = AlgorithmName::ALL.map(AlgorithmName::as_str);
        tcp.congestion = one_of(&given, "the congestion control", AlgorithmName::from_name, &names)?;
    }
    if let Some(given) = given.ecn {
        tcp.ecn = one_of(&given, "ecn", EcnMode::from_name, &EcnMode::ALL.map(EcnMode::as_str))?;
    }
    if let Some(given) = given.fast_open {
        let names = FastOpenMode::ALL.map(FastOpenMode::as_str);
        tcp.fast_open = one_of(&given, "fast_open", FastOpenMode::from_name, &names)?;
    }
    if let Some(given) = given.syn_cookies {
        let names = SynCookies::ALL.map(SynCookies::as_str);
        tcp.syn_cookies = one_of(&given, "syn_cookies", SynCookies::from_name, &names)?;
    }
    if let Some(given) = given.rfc1337 {
        let from_name = |name: &str| ["off", "on"].iter().position(|known| *known == name);
        tcp.rfc1337 = one_of(&given, "rfc1337", from_name, &["off", "on"])? == 1;
    }
    Ok(tcp)
}

fn one_of<T>(
    given: &Given<String>,
    what: &str,
    from_name: impl Fn(&str) -> Option<T>,
    names: &[&str],
) -> Result<T, ConfigError> {
    let wrong = || given.bad(format!("{what} cannot be {:?}; give one of {}", given.value, names.join(", ")));
    from_name(&given.value).ok_or_else(wrong)
}
