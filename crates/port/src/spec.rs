//! What stands behind `--port`: `DRIVER:INTERFACE`, then perhaps `?` and the faults to inject.

use std::fmt;
use std::str::FromStr;

use crate::fault::FaultPlan;

/// Longest interface name that Linux takes (IFNAMSIZ less its terminator).
const NAME_MAX: usize = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// A TAP interface, made if it is not there: the kernel is the engine's neighbour.
    Tap,
    /// An existing Ethernet interface through AF_PACKET.
    Packet,
    /// An existing Ethernet interface through AF_XDP, with the addresses that the kernel has there.
    Xdp,
}

impl Driver {
    /// Whether addresses, routes and neighbours are the kernel's, and given to nobody.
    pub const fn shares_address(self) -> bool {
        matches!(self, Driver::Xdp)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Driver::Tap => "tap",
            Driver::Packet => "packet",
            Driver::Xdp => "xdp",
        }
    }
}

/// A port to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    pub driver: Driver,
    pub interface: String,
    pub faults: Option<FaultPlan>,
}

/// Why a port's specification was refused. The text says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecError {
    NoDriver { given: String },
    UnknownDriver { given: String },
    BadInterfaceName { given: String },
    UnknownFault { key: String },
    BadFaultValue { key: String, value: String, wanted: &'static str },
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::NoDriver { given } => {
                write!(
                    f,
                    "`{given}` names no driver: write tap:NAME, packet:NAME or xdp:NAME, such as packet:eth1"
                )
            }
            SpecError::UnknownDriver { given } => write!(
                f,
                "unknown driver `{given}`: use tap (a TAP interface, made if it is not there), packet (an existing \
                 Ethernet interface, with addresses of the engine's own) or xdp (an existing Ethernet interface, with \
                 the host's addresses)"
            ),
            SpecError::BadInterfaceName { given } => write!(
                f,
                "`{given}` is no interface name: use 1 to {NAME_MAX} letters, digits, `-`, `_` or `.` (see `ip link`)"
            ),
            SpecError::UnknownFault { key } => write!(
                f,
                "unknown fault `{key}`: use drop, burst, reorder, dup, corrupt, delay_us, jitter_us, rate_kbit, queue_bytes, \
                 mark_bytes (each also with rx_ or tx_ in front), or seed; for example ?drop=1%&reorder=1%&seed=7"
            ),
            SpecError::BadFaultValue { key, value, wanted } => {
                write!(f, "`{value}` is no value for `{key}`: write {wanted}")
            }
        }
    }
}

impl std::error::Error for SpecError {}

impl FromStr for PortSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<PortSpec, SpecError> {
        let (link, faults) = match text.split_once('?') {
            Some((link, faults)) => (link, Some(faults)),
            None => (text, None),
        };
        let (driver, interface) =
            link.split_once(':').ok_or_else(|| SpecError::NoDriver { given: link.to_owned() })?;
        let driver = match driver {
            "tap" => Driver::Tap,
            "packet" => Driver::Packet,
            "xdp" => Driver::Xdp,
            other => return Err(SpecError::UnknownDriver { given: other.to_owned() }),
        };
        if !is_interface_name(interface) {
            return Err(SpecError::BadInterfaceName { given: interface.to_owned() });
        }
        let faults = faults.map(FaultPlan::from_str).transpose()?;
        Ok(PortSpec { driver, interface: interface.to_owned(), faults })
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.driver.name(), self.interface)?;
        match &self.faults {
            Some(plan) => write!(f, "?{plan}"),
            None => Ok(()),
        }
    }
}

/// Stricter than the kernel, which takes any octets but `/`, `:` and white space; `%` would make it choose a name.
fn is_interface_name(name: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
    (1..=NAME_MAX).contains(&name.len()) && name.chars().all(known) && name != "." && name != ".."
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Rate;

    #[test]
    fn the_plain_form() {
        let spec: PortSpec = "tap:toe0".parse().expect("good");
        assert_eq!(spec, PortSpec { driver: Driver::Tap, interface: "toe0".to_owned(), faults: None });
        let spec: PortSpec = "packet:eth0.12".parse().expect("good");
        assert_eq!((spec.driver, spec.interface.as_str()), (Driver::Packet, "eth0.12"));
        let spec: PortSpec = "xdp:eth0".parse().expect("good");
        assert!(spec.driver == Driver::Xdp && spec.driver.shares_address());
    }

    #[test]
    fn faults_follow_a_question_mark() {
        let spec: PortSpec =
            "packet:veth0?drop=1%&tx_reorder=0.5%&rx_delay_us=200&seed=7".parse().expect("good");
        let plan = spec.faults.expect("faults given");
        assert_eq!(plan.rx.drop, Rate::from_ppm(10_000));
        assert_eq!(plan.tx.drop, Rate::from_ppm(10_000));
        assert_eq!((plan.rx.reorder, plan.tx.reorder), (Rate::NEVER, Rate::from_ppm(5_000)));
        assert_eq!((plan.rx.delay_us, plan.tx.delay_us), (200, 0));
        assert_eq!(plan.seed, 7);
    }

    #[test]
    fn what_is_printed_reads_back() {
        for text in [
            "tap:a",
            "xdp:d",
            "packet:b?drop=2.5%&tx_dup=1%&rx_delay_us=9&corrupt=100%&seed=3",
            "tap:c?seed=0",
            "tap:e?tx_drop=1%&tx_burst=5&jitter_us=20&rx_rate_kbit=100000&rx_queue_bytes=250000&rx_mark_bytes=9000",
        ] {
            let spec: PortSpec = text.parse().expect("good");
            assert_eq!(spec.to_string().parse(), Ok(spec));
        }
    }

    #[test]
    fn every_refusal_says_what_to_write() {
        let cases = [
            ("eth0", "packet:eth1"),
            ("dpdk:eth0", "use tap"),
            ("tap:", "interface name"),
            ("tap:a b", "interface name"),
            ("tap:tap%d", "interface name"),
            ("packet:sixteen-letters-", "15"),
            ("tap:a?loss=1%", "use drop"),
            ("tap:a?drop", "percentage"),
            ("tap:a?drop=101%", "percentage"),
            ("tap:a?drop=-1%", "percentage"),
            ("tap:a?drop=nan", "percentage"),
            ("tap:a?delay_us=x", "microseconds"),
            ("tap:a?jitter_us=10000001", "microseconds"),
            ("tap:a?rate_kbit=fast", "kbit/s"),
            ("tap:a?queue_bytes=-1", "octets"),
            ("tap:a?burst=1001", "frames"),
            ("tap:a?seed=-1", "whole number"),
            ("tap:a?", "use drop"),
        ];
        for (text, hint) in cases {
            let error = text.parse::<PortSpec>().expect_err(text).to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
