//! What stands behind `--port`: `DRIVER:INTERFACE`, then perhaps `?` and a VLAN or the faults to inject.

use std::fmt;
use std::str::FromStr;

use crate::fault::{FaultError, FaultPlan};
use toe_wire::vlan::VlanId;

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
    /// Of the networks that share the interface by 802.1Q tags.
    pub vlan: Option<VlanId>,
    pub faults: Option<FaultPlan>,
}

/// Why a port's specification was refused. The text says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecError {
    NoDriver {
        given: String,
    },
    UnknownDriver {
        given: String,
    },
    BadInterfaceName {
        given: String,
    },
    BadVlan {
        value: String,
    },
    /// Where the kernel can make an interface of one network.
    NoVlanHere {
        driver: Driver,
        interface: String,
        vlan: VlanId,
    },
    Fault(FaultError),
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
            SpecError::BadVlan { value } => write!(f, "`{value}` is no VLAN: write a number from 1 to 4094"),
            SpecError::NoVlanHere { driver, interface, vlan } => {
                let (driver, id) = (driver.name(), vlan.raw());
                write!(
                    f,
                    "?vlan= is for tap only; for {driver} make an interface of that network and give that: `ip link add \
                     link {interface} name {interface}.{id} type vlan id {id}`, then {driver}:{interface}.{id}"
                )
            }
            SpecError::Fault(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SpecError {}

impl FromStr for PortSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<PortSpec, SpecError> {
        let (link, options) = match text.split_once('?') {
            Some((link, options)) => (link, Some(options)),
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
        let interface = interface.to_owned();
        let (vlan, faults) = options.map_or(Ok((None, None)), take_vlan)?;
        if let Some(vlan) = vlan.filter(|_| driver != Driver::Tap) {
            return Err(SpecError::NoVlanHere { driver, interface, vlan });
        }
        let faults = faults.as_deref().map(FaultPlan::from_str).transpose().map_err(SpecError::Fault)?;
        Ok(PortSpec { driver, interface, vlan, faults })
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.driver.name(), self.interface)?;
        let vlan = self.vlan.map(|vlan| format!("vlan={}", vlan.raw()));
        let options = vlan.into_iter().chain(self.faults.as_ref().map(FaultPlan::to_string));
        options.zip(["?", "&"]).try_for_each(|(option, sign)| write!(f, "{sign}{option}"))
    }
}

/// The VLAN, and the options that are left: the faults.
fn take_vlan(options: &str) -> Result<(Option<VlanId>, Option<String>), SpecError> {
    let (vlans, faults): (Vec<&str>, Vec<&str>) =
        options.split('&').partition(|option| option.split('=').next() == Some("vlan"));
    let Some(given) = vlans.last() else { return Ok((None, Some(options.to_owned()))) };
    let value = given.split_once('=').map_or("", |(_, value)| value);
    let vlan = value.parse().ok().and_then(VlanId::new);
    let vlan = vlan.ok_or_else(|| SpecError::BadVlan { value: value.to_owned() })?;
    Ok((Some(vlan), (!faults.is_empty()).then(|| faults.join("&"))))
}

/// Stricter than the kernel, which takes any bytes but `/`, `:` and white space; `%` would make it choose a name.
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
        assert_eq!(
            spec,
            PortSpec { driver: Driver::Tap, interface: "toe0".to_owned(), vlan: None, faults: None }
        );
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
    fn a_vlan_stands_among_the_faults() {
        let spec: PortSpec = "tap:a?drop=1%&vlan=12".parse().expect("good");
        assert_eq!(spec.vlan.map(VlanId::raw), Some(12));
        assert_eq!(spec.faults.map(|plan| plan.rx.drop), Some(Rate::from_ppm(10_000)));
        let alone: PortSpec = "tap:a?vlan=12".parse().expect("good");
        assert_eq!(alone.faults, None);
    }

    #[test]
    fn what_is_printed_reads_back() {
        for text in [
            "tap:a",
            "xdp:d",
            "packet:b?drop=2.5%&tx_dup=1%&rx_delay_us=9&corrupt=100%&seed=3",
            "tap:c?seed=0",
            "tap:d?vlan=12",
            "tap:e?drop=1%&vlan=4094&seed=3",
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
            ("tap:a?vlan", "1 to 4094"),
            ("tap:a?vlan=0", "1 to 4094"),
            ("tap:a?vlan=4095", "1 to 4094"),
            ("packet:eth1?vlan=12", "packet:eth1.12"),
            ("tap:a?loss=1%", "drop"),
            ("tap:a?drop", "percentage"),
            ("tap:a?drop=101%", "percentage"),
            ("tap:a?drop=-1%", "percentage"),
            ("tap:a?drop=nan", "percentage"),
            ("tap:a?delay_us=x", "microseconds"),
            ("tap:a?jitter_us=10000001", "microseconds"),
            ("tap:a?rate_kbit=fast", "kbit/s"),
            ("tap:a?queue_bytes=-1", "bytes"),
            ("tap:a?burst=1001", "frames"),
            ("tap:a?seed=-1", "whole number"),
            ("tap:a?", "drop"),
        ];
        for (text, hint) in cases {
            let error = text.parse::<PortSpec>().expect_err(text).to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
