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

/// What people are told of a driver.
struct About {
    driver: Driver,
    name: &'static str,
    /// What it is, in messages.
    is: &'static str,
    /// What whoever opens it needs who is not root.
    needs: &'static str,
}

/// A line a driver: from this they are parsed, and messages and help name them.
const DRIVERS: [About; 3] = [
    About {
        driver: Driver::Tap,
        name: "tap",
        is: "a TAP interface, made if it is not there",
        needs: "CAP_NET_ADMIN",
    },
    About {
        driver: Driver::Packet,
        name: "packet",
        is: "an existing Ethernet interface, with addresses of the engine's own",
        needs: "CAP_NET_RAW and CAP_NET_ADMIN",
    },
    About {
        driver: Driver::Xdp,
        name: "xdp",
        is: "an existing Ethernet interface, with the host's addresses",
        needs: "CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF",
    },
];

/// What the engine has to know of a driver, beside what its port says.
impl Driver {
    /// Whether addresses, routes and neighbours are the kernel's, and given to nobody.
    pub const fn shares_address(self) -> bool {
        matches!(self, Driver::Xdp)
    }

    /// Whether the interface is the engine's while the port is open, and gone when it is closed.
    pub const fn makes_interface(self) -> bool {
        matches!(self, Driver::Tap)
    }

    /// Whether the engine has a hardware address there that is not the kernel's.
    pub const fn has_own_mac(self) -> bool {
        matches!(self, Driver::Tap)
    }

    /// Whether its frames can be of a VLAN. Elsewhere the kernel has interfaces of one.
    pub const fn takes_vlan(self) -> bool {
        matches!(self, Driver::Tap)
    }

    /// Whether frames lie in memory that is locked, and that counts against the user's limit.
    pub const fn locks_memory(self) -> bool {
        matches!(self, Driver::Xdp)
    }

    pub fn name(self) -> &'static str {
        self.about().map_or("", |about| about.name)
    }

    /// What whoever opens it needs who is not root.
    pub(crate) fn needs(self) -> &'static str {
        self.about().map_or("", |about| about.needs)
    }

    fn about(self) -> Option<&'static About> {
        DRIVERS.iter().find(|about| about.driver == self)
    }

    /// What `--port` can be given, for the help: `tap:NAME, packet:NAME, …`.
    pub fn forms() -> String {
        DRIVERS.iter().map(form).collect::<Vec<_>>().join(", ")
    }
}

fn form(about: &About) -> String {
    format!("{}:NAME", about.name)
}

/// `a, b or c`.
fn one_of(choices: impl Iterator<Item = String>) -> String {
    let mut choices: Vec<String> = choices.collect();
    let last = choices.pop().unwrap_or_default();
    if choices.is_empty() { last } else { format!("{} or {last}", choices.join(", ")) }
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
                let forms = one_of(DRIVERS.iter().map(form));
                write!(f, "`{given}` names no driver: write {forms}, such as packet:eth1")
            }
            SpecError::UnknownDriver { given } => {
                let known = one_of(DRIVERS.iter().map(|about| format!("{} ({})", about.name, about.is)));
                write!(f, "unknown driver `{given}`: use {known}")
            }
            SpecError::BadInterfaceName { given } => write!(
                f,
                "`{given}` is no interface name: use 1 to {NAME_MAX} letters, digits, `-`, `_` or `.` (see `ip link`)"
            ),
            SpecError::BadVlan { value } => write!(f, "`{value}` is no VLAN: write a number from 1 to 4094"),
            SpecError::NoVlanHere { driver, interface, vlan } => {
                let (driver, id) = (driver.name(), vlan.raw());
                let takers = DRIVERS.iter().filter(|about| about.driver.takes_vlan());
                let takers = one_of(takers.map(|about| about.name.to_owned()));
                write!(
                    f,
                    "?vlan= is for {takers} only; for {driver} make an interface of that network and give that: `ip link add \
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
        let about = DRIVERS.iter().find(|about| about.name == driver);
        let driver = about.ok_or_else(|| SpecError::UnknownDriver { given: driver.to_owned() })?.driver;
        if !is_interface_name(interface) {
            return Err(SpecError::BadInterfaceName { given: interface.to_owned() });
        }
        let interface = interface.to_owned();
        let (vlan, faults) = options.map_or(Ok((None, None)), take_vlan)?;
        if let Some(vlan) = vlan.filter(|_| !driver.takes_vlan()) {
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
    fn each_driver_is_known_by_its_name() {
        for driver in [Driver::Tap, Driver::Packet, Driver::Xdp] {
            assert!(driver.about().is_some(), "{driver:?} has a line");
        }
        for about in DRIVERS {
            let spec: PortSpec = form(&about).parse().expect(about.name);
            assert_eq!((spec.driver, about.driver.name()), (about.driver, about.name));
        }
        assert_eq!(Driver::forms(), "tap:NAME, packet:NAME, xdp:NAME");
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
            ("eth0", "write tap:NAME, packet:NAME or xdp:NAME, such as packet:eth1"),
            ("dpdk:eth0", "use tap (a TAP interface, made if it is not there), packet (an existing"),
            ("packet:eth1?vlan=12", "?vlan= is for tap only; for packet"),
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
