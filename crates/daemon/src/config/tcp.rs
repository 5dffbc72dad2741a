//! The table `[tcp]`: what connections do when their program says nothing.

use super::{ConfigError, Given};
use serde::Deserialize;
use toe_engine::{AlgorithmName, EcnMode, TcpConfig};
use toml::Spanned;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileTcp {
    pub(super) congestion: Option<Spanned<String>>,
    pub(super) ecn: Option<Spanned<String>>,
}

pub(super) fn check(
    congestion: Option<Given<String>>,
    ecn: Option<Given<String>>,
) -> Result<TcpConfig, ConfigError> {
    let mut tcp = TcpConfig::default();
    if let Some(given) = congestion {
        tcp.congestion = AlgorithmName::from_name(&given.value).ok_or_else(|| {
            let names = AlgorithmName::ALL.map(AlgorithmName::as_str).join(", ");
            given.bad(format!("no congestion control is called {:?}; give one of {names}", given.value))
        })?;
    }
    if let Some(given) = ecn {
        tcp.ecn = EcnMode::from_name(&given.value).ok_or_else(|| {
            let names = EcnMode::ALL.map(EcnMode::as_str).join(", ");
            given.bad(format!("ecn cannot be {:?}; give one of {names}", given.value))
        })?;
    }
    Ok(tcp)
}
