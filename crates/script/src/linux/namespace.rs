//! Linux's TCP as a script wants it set up, with the far end's link.

use crate::namespace::{enter_alone, ip, sysctl};
use crate::packet::{FAR_ADDR, STACK_ADDR};
use crate::script::{Header, Setting, SettingName};
use crate::stack::StackError;
use toe_port::{Driver, Port, PortSpec};
use toe_wire::MacAddr;

const LINK: &str = "script0";
/// The kernel's hardware address on the link.
pub(super) const STACK_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// Settings that every script has, so that a machine's own do not change what is seen.
const ALWAYS: [(&str, &str); 7] = [
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv4/tcp_no_metrics_save", "1"),
    ("ipv4/tcp_wmem", "4096 1048576 4194304"),
    ("ipv4/tcp_rmem", "4096 131072 6291456"),
    ("ipv4/tcp_fastopen", "0"),
    ("ipv4/tcp_syncookies", "1"),
];

/// Moves this thread into a namespace of its own, with the link and Linux's TCP set up as the script wants.
pub(super) fn enter(header: &Header) -> Result<Box<dyn Port>, StackError> {
    enter_alone()?;
    for (name, value) in ALWAYS {
        sysctl(name, value)?;
    }
    for setting in &header.setup {
        set_up(setting)?;
    }
    let spec = PortSpec { driver: Driver::Tap, interface: LINK.to_owned(), vlan: None, faults: None };
    let port = toe_port::open(&spec).map_err(|error| StackError::new("opening the link", error))?;
    // Segments one by one, if the script says nothing else: what the kernel would let a card cut, it cuts itself.
    let gso = header.setup.iter().find(|setting| setting.name == SettingName::Gso);
    let gso = gso.map_or("1", |setting| setting.value.as_str());
    ip(&format!(
        "link set {LINK} address {STACK_MAC} mtu {} gso_max_segs {gso}\n\
         addr add {STACK_ADDR}/24 dev {LINK}\n\
         neigh replace {FAR_ADDR} lladdr {} dev {LINK} nud permanent\n",
        header.mtu,
        port.mac()
    ))?;
    Ok(port)
}

fn set_up(setting: &Setting) -> Result<(), StackError> {
    let value = setting.value.as_str();
    let unknown = || StackError(format!("{:?} has no value `{value}`", setting.name));
    let choose = |choices: &[(&str, &'static str)]| {
        choices.iter().find(|(name, _)| *name == value).map(|(_, raw)| *raw).ok_or_else(unknown)
    };
    let on_off = || choose(&[("on", "1"), ("off", "0")]);
    match setting.name {
        SettingName::Ecn => sysctl("ipv4/tcp_ecn", choose(&[("on", "1"), ("off", "0"), ("passive", "2")])?),
        // Of a namespace only the root of the machine may choose it, so each socket is told (`Program`).
        SettingName::Congestion => Ok(()),
        // The link's.
        SettingName::Gso => Ok(()),
        // 0x400: each listener; 0x4: data in the first SYN without a cookie, never.
        SettingName::FastOpen => sysctl(
            "ipv4/tcp_fastopen",
            choose(&[("client", "1"), ("server", "1026"), ("both", "1027"), ("off", "0")])?,
        ),
        SettingName::SynCookies => sysctl("ipv4/tcp_syncookies", choose(&[("always", "2"), ("off", "0")])?),
        SettingName::Rfc1337 => sysctl("ipv4/tcp_rfc1337", on_off()?),
        SettingName::Sack => sysctl("ipv4/tcp_sack", on_off()?),
        SettingName::Timestamps => sysctl("ipv4/tcp_timestamps", on_off()?),
        SettingName::WindowScaling => sysctl("ipv4/tcp_window_scaling", on_off()?),
        SettingName::SynRetries => sysctl("ipv4/tcp_syn_retries", value),
        SettingName::SynAckRetries => sysctl("ipv4/tcp_synack_retries", value),
        SettingName::DataRetries => sysctl("ipv4/tcp_retries2", value),
        SettingName::SlowStartAfterIdle => sysctl("ipv4/tcp_slow_start_after_idle", on_off()?),
        SettingName::ChallengeLimit => sysctl("ipv4/tcp_challenge_ack_limit", value),
        SettingName::FinTimeout => sysctl("ipv4/tcp_fin_timeout", value),
    }
}
