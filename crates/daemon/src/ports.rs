//! The engine's links as the run loop drives them: frames in, frames out, and what happens when a link fails.
//!
//! A failing link (its interface was taken down or removed) is logged, counted and looked at again once a second; the
//! engine goes on with the others. Where the interface was removed it is opened anew once there is one of its name.

use crate::config::PortConfig;
use crate::kernel::events::LinkEvent;
use crate::poller::{Poller, Token};
use crate::session::Sessions;
use toe_base::{Addr, Instant, PortId};
use toe_engine::{Engine, Link, NetworkChange};
use toe_port::{Driver, Port, PortSpec, Steering};
use toe_wire::icmpv6::link_local_of;
use toe_wire::vlan::VlanId;

/// Frames taken from, and given to, one port in one round.
const FRAMES_PER_ROUND: usize = 256;
/// Frames taken at once, and bytes after which no more are taken in a round: a stream's program and its peer go on while
/// the engine copies what comes next, instead of all waiting for a whole window.
const FRAMES_PER_LOOK: usize = 8;
const BYTES_PER_ROUND: usize = 256 << 10;
/// Looks in vain, one after the other, that make a port quiet.
const QUIET_AFTER: u32 = 64;
/// How often a quiet port is looked at. Each look is a system call, which rounds of local traffic need not pay; and a
/// frame that waits so long has waited longer in its sender's interrupt.
const QUIET_LOOK_US: u64 = 10;
/// How often ports are tended that want it.
const TEND_EVERY_US: u64 = 1_000_000;
/// How long a port that failed is left alone.
const RETRY_AFTER_US: u64 = 1_000_000;

/// When a port is looked at.
struct PortLooks {
    /// Those in vain since the last frame, and when the next one is.
    empty: u32,
    next: Instant,
    /// The last one left nothing behind.
    is_drained: bool,
}

impl Default for PortLooks {
    fn default() -> PortLooks {
        PortLooks { empty: 0, next: Instant::ZERO, is_drained: true }
    }
}

/// One link.
pub struct PortSlot {
    pub id: PortId,
    /// `DRIVER:IFNAME` as given.
    pub name: String,
    pub addrs: Vec<String>,
    pub port: Box<dyn Port>,
    spec: PortSpec,
    /// The interface's number, as long as the kernel has it.
    index: Option<u32>,
    /// The kernel says that it is one end of a veth.
    pub is_veth: bool,
    /// The interface went away, or is not as it was: it must be opened anew.
    must_reopen: bool,
    /// Set while the port is left alone after a failure.
    retry_at: Option<Instant>,
    looks: PortLooks,
    /// Failures of the port so far.
    pub errors: u64,
}

impl std::fmt::Debug for PortSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortSlot").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

/// All links of one engine.
#[derive(Debug, Default)]
pub struct Ports {
    pub slots: Vec<PortSlot>,
    /// When those that want it are tended next.
    tend_at: Instant,
    /// What comes wakes nobody.
    is_quiet: bool,
}

impl Ports {
    /// Hands an open port with its addresses to the engine.
    pub fn add(
        &mut self,
        engine: &mut Engine,
        poller: &Poller,
        config: &PortConfig,
        port: Box<dyn Port>,
    ) -> std::io::Result<()> {
        let id = engine.add_port(link_of(&*port, config.spec.vlan));
        if config.spec.driver.shares_address() {
            engine.handle_network(NetworkChange::Shared { port: id });
        }
        let mut port = port;
        let mut addrs: Vec<(Addr, u8)> =
            config.addrs.iter().map(|cidr| (cidr.addr.into(), cidr.prefix_len)).collect();
        if config.addrs.iter().any(|cidr| cidr.addr.is_ipv6()) {
            speak_ipv6(&mut addrs, config.spec.driver, &mut *port)?;
        }
        for &(addr, prefix_len) in &addrs {
            engine.handle_network(NetworkChange::Address { port: id, addr, prefix_len });
        }
        config.gateways.iter().for_each(|gateway| {
            engine.handle_network(NetworkChange::Gateway { port: id, gateway: (*gateway).into() })
        });
        let slot = PortSlot {
            id,
            name: config.spec.to_string(),
            addrs: addrs.iter().map(|(addr, len)| format!("{}/{len}", addr.to_ip())).collect(),
            port,
            spec: config.spec.clone(),
            index: None,
            is_veth: false,
            must_reopen: false,
            retry_at: None,
            looks: PortLooks::default(),
            errors: 0,
        };
        self.watch(poller, &slot)?;
        let (mac, mtu) = (slot.port.mac(), slot.port.mtu());
        tracing::info!(port = slot.name, %mac, mtu, addrs = ?slot.addrs, gateways = ?config.gateways, "port open");
        self.slots.push(slot);
        Ok(())
    }

    fn watch(&self, poller: &Poller, slot: &PortSlot) -> std::io::Result<()> {
        slot.port.poll_fd().map_or(Ok(()), |fd| poller.add(fd, Token::Port(slot.id.0)))
    }

    /// Whether nothing waited there when that was looked at last.
    pub fn are_drained(&self) -> bool {
        self.slots.iter().all(|slot| slot.looks.is_drained)
    }

    /// What comes is to wake nobody, or is to.
    pub fn set_quiet(&mut self, poller: &Poller, is_quiet: bool) {
        if std::mem::replace(&mut self.is_quiet, is_quiet) != is_quiet {
            for slot in &self.slots {
                if let Some(fd) = slot.port.poll_fd() {
                    poller.set_quiet(fd, Token::Port(slot.id.0), is_quiet);
                }
            }
        }
    }

    /// Takes frames from every port into the engine; returns how many.
    pub fn receive(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        sessions: &mut Sessions,
        poller: &Poller,
    ) -> usize {
        if now >= self.tend_at {
            self.tend_at = now.after_us(TEND_EVERY_US);
            self.slots.iter_mut().filter(|slot| slot.port.needs_tending()).for_each(|slot| slot.port.tend());
        }
        let mut frames = 0;
        for slot in &mut self.slots {
            if !slot.may_try(now, poller, engine) || now < slot.looks.next {
                continue;
            }
            match slot.receive(now, engine, sessions) {
                Ok(n) => {
                    slot.looked(now, n);
                    frames += n;
                }
                Err(error) => slot.failed(now, poller, "receive", &error),
            }
        }
        frames
    }

    /// Sends what the engine has for each port; returns how many frames.
    pub fn transmit(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        sessions: &mut Sessions,
        poller: &Poller,
    ) -> usize {
        let mut frames = 0;
        for slot in &mut self.slots {
            if slot.retry_at.is_some() {
                continue;
            }
            let sink = slot.port.transmit();
            let sent = engine.poll_transmit(now, slot.id, sink, sessions, FRAMES_PER_ROUND);
            // A port that holds frames back wants to be asked again when their time has come.
            let flush = sent > 0 || slot.port.next_deadline_us().is_some();
            if flush && let Err(error) = slot.port.flush() {
                slot.failed(now, poller, "send", &error);
            }
            frames += sent;
        }
        frames
    }

    /// When a port must be looked at again even if nothing arrives.
    pub fn deadline(&self, now: Instant) -> Instant {
        let of = |slot: &PortSlot| match (slot.retry_at, slot.port.next_deadline_us()) {
            (Some(retry), _) => retry,
            (None, Some(us)) => now.after_us(us),
            (None, None) if slot.port.needs_tending() => self.tend_at,
            (None, None) => Instant::FAR_FUTURE,
        };
        self.slots.iter().map(of).min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Whether a port's addresses are the kernel's.
    pub fn is_shared(&self, id: PortId) -> bool {
        self.slots.iter().any(|slot| slot.id == id && slot.spec.driver.shares_address())
    }

    /// All such ports.
    pub fn shared(&self) -> Vec<PortId> {
        self.slots.iter().filter(|slot| slot.spec.driver.shares_address()).map(|slot| slot.id).collect()
    }

    /// The port on the interface of this name.
    pub fn on_interface(&self, name: &str) -> Option<PortId> {
        self.slots.iter().find(|slot| slot.spec.interface == name).map(|slot| slot.id)
    }

    /// A port's interface is there, as `link` says.
    pub fn interface_is(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        poller: &Poller,
        id: PortId,
        (index, link): (u32, &LinkEvent),
    ) {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) else { return };
        slot.is_veth = link.is_veth;
        let is_other = slot.index.replace(index).is_some_and(|before| before != index);
        let is_changed = !slot.spec.driver.makes_interface()
            && (slot.port.mtu() != link.mtu || link.mac.is_some_and(|mac| mac != slot.port.mac()));
        if is_changed && !is_other && !slot.must_reopen && slot.spec.driver.shares_address() {
            slot.refresh(engine);
        } else if is_other || is_changed {
            slot.leave(now, poller);
            slot.must_reopen = true;
        }
        if slot.retry_at.is_some() {
            slot.retry_at = Some(now);
        }
    }

    /// A port's interface is gone.
    pub fn interface_gone(&mut self, now: Instant, poller: &Poller, id: PortId, index: u32) {
        let slot = self.slots.iter_mut().find(|slot| slot.id == id && slot.index == Some(index));
        if let Some(slot) = slot {
            tracing::warn!(port = slot.name, "the interface is gone; waiting for one of its name");
            slot.index = None;
            slot.leave(now, poller);
            slot.must_reopen = true;
        }
    }

    /// The kernel has an address on a shared port's interface, or (`None`) no longer.
    pub fn set_addr(&mut self, id: PortId, addr: Addr, prefix_len: Option<u8>) {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) else { return };
        let start = format!("{addr}/");
        slot.addrs.retain(|known| !known.starts_with(&start));
        slot.addrs.extend(prefix_len.map(|len| format!("{start}{len}")));
        tracing::info!(port = slot.name, addrs = ?slot.addrs, "addresses");
    }

    /// What comes to an address of a shared port may be the engine's, or is no longer.
    pub fn steer_addr(&mut self, id: PortId, addr: Addr, on: bool) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.id == id) {
            slot.steer(|steering| match addr.to_v4() {
                Some(addr) => steering.address(addr, on),
                // What comes to it is the kernel's.
                None => Ok(()),
            });
        }
    }

    /// Changes what is steered to the engine on every shared port; `false`: not on all of them.
    pub fn each_steering(
        &mut self,
        mut change: impl FnMut(&mut dyn Steering) -> std::io::Result<()>,
    ) -> bool {
        // All of them, also after one that refuses.
        self.slots.iter_mut().filter_map(|slot| (!slot.steer(&mut change)).then_some(())).count() == 0
    }

    /// The port's name for reports; `None` is the engine's own.
    pub fn name(&self, id: Option<PortId>) -> &str {
        let found = id.and_then(|id| self.slots.iter().find(|slot| slot.id == id));
        found.map_or("local", |slot| slot.name.as_str())
    }
}

impl PortSlot {
    /// Takes one round's frames into the engine; returns how many.
    fn receive(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        sessions: &mut Sessions,
    ) -> std::io::Result<usize> {
        let (mut frames, mut bytes) = (0, 0);
        self.looks.is_drained = false;
        while frames < FRAMES_PER_ROUND && bytes < BYTES_PER_ROUND && !sessions.datagrams.is_crowded() {
            let taken = if engine.view().needs_whole_frames() {
                self.port.receive(FRAMES_PER_LOOK, &mut |frame, offload| {
                    bytes += frame.len();
                    let incoming = engine.handle_frame(now, self.id, frame, offload, sessions);
                    sessions.hand_over(now, engine, incoming);
                })?
            } else {
                self.port.receive_split(FRAMES_PER_LOOK, &mut |frame, offload, tail| {
                    bytes += frame.len();
                    let incoming = engine.handle_frame(now, self.id, (frame, tail), offload, sessions);
                    sessions.hand_over(now, engine, incoming);
                })?
            };
            frames += taken;
            if taken < FRAMES_PER_LOOK {
                self.looks.is_drained = true;
                break;
            }
        }
        Ok(frames)
    }

    /// Why nothing goes in or out at present, for reports.
    pub fn trouble(&self) -> Option<String> {
        let interface = &self.spec.interface;
        match (self.retry_at, self.must_reopen) {
            (None, _) => None,
            (Some(_), true) => Some(format!(
                "the interface is gone, or is not as it was: waiting for one called '{interface}' (ip link)"
            )),
            (Some(_), false) => Some(format!(
                "it failed and is tried again each second: is '{interface}' up (ip link)? The engine's log has the error"
            )),
        }
    }

    /// Frames wait there.
    pub fn stir(&mut self) {
        self.looks.empty = 0;
        self.looks.next = Instant::ZERO;
    }

    /// Notes how many frames a look found.
    fn looked(&mut self, now: Instant, frames: usize) {
        if frames > 0 {
            self.stir();
            return;
        }
        self.looks.empty = self.looks.empty.saturating_add(1);
        if self.looks.empty >= QUIET_AFTER {
            self.looks.next = now.after_us(QUIET_LOOK_US);
        }
    }

    fn steer(&mut self, change: impl FnOnce(&mut dyn Steering) -> std::io::Result<()>) -> bool {
        let Some(steering) = self.port.steering() else { return true };
        let Err(error) = change(steering) else { return true };
        self.errors += 1;
        if self.errors.is_power_of_two() {
            let errors = self.errors;
            tracing::error!(port = self.name, errors, %error, "frames cannot be steered to the engine");
        }
        false
    }

    /// Whether the port works, or is to be tried again now.
    fn may_try(&mut self, now: Instant, poller: &Poller, engine: &mut Engine) -> bool {
        let Some(at) = self.retry_at else { return true };
        if now < at || self.must_reopen && !self.reopen(now, engine) {
            return false;
        }
        self.retry_at = None;
        if let Some(fd) = self.port.poll_fd()
            && let Err(error) = poller.add(fd, Token::Port(self.id.0))
        {
            tracing::warn!(port = self.name, %error, "port cannot be watched");
        }
        true
    }

    /// Opens the interface anew; whether that was possible.
    fn reopen(&mut self, now: Instant, engine: &mut Engine) -> bool {
        if let Err(error) = self.port.reopen() {
            self.errors += 1;
            if self.errors.is_power_of_two() {
                tracing::warn!(port = self.name, errors = self.errors, %error, "port cannot be opened again; trying on");
            }
            self.retry_at = Some(now.after_us(RETRY_AFTER_US));
            return false;
        }
        self.must_reopen = false;
        engine.handle_network(NetworkChange::Link {
            port: self.id,
            link: link_of(&*self.port, self.spec.vlan),
        });
        tracing::info!(port = self.name, mac = %self.port.mac(), mtu = self.port.mtu(), "port open again");
        true
    }

    /// Takes up what has changed of an interface that is the same.
    fn refresh(&mut self, engine: &mut Engine) {
        let before = (self.port.mac(), self.port.mtu());
        if let Err(error) = self.port.refresh() {
            self.errors += 1;
            return tracing::warn!(port = self.name, %error, "the port goes on with its old MTU and address");
        }
        if before != (self.port.mac(), self.port.mtu()) {
            engine.handle_network(NetworkChange::Link {
                port: self.id,
                link: link_of(&*self.port, self.spec.vlan),
            });
            tracing::info!(port = self.name, mac = %self.port.mac(), mtu = self.port.mtu(), "port changed");
        }
    }

    /// Leaves the port alone for a while: its descriptor would report the failure without end.
    fn leave(&mut self, now: Instant, poller: &Poller) {
        if let Some(fd) = self.port.poll_fd() {
            poller.remove(fd);
        }
        self.retry_at = Some(now.after_us(RETRY_AFTER_US));
    }

    fn failed(&mut self, now: Instant, poller: &Poller, what: &str, error: &std::io::Error) {
        self.errors += 1;
        // One line for the first failure of a row, then one for each power of two.
        if self.errors.is_power_of_two() {
            tracing::warn!(port = self.name, errors = self.errors, %error, "port failed to {what}; trying again");
        }
        self.leave(now, poller);
    }
}

/// What IPv6 needs of a link beside an address. Whoever speaks it on a link has one of that link (RFC 4291 section 2.8): on
/// a link with a hardware address of its own the engine makes one. Elsewhere it would be the kernel's.
fn speak_ipv6(addrs: &mut Vec<(Addr, u8)>, driver: Driver, port: &mut dyn Port) -> std::io::Result<()> {
    const PREFIX_LEN: u8 = 64;
    port.receive_groups()?;
    let is_named = addrs.iter().any(|(addr, _)| addr.is_link_local());
    if driver.has_own_mac() && !is_named {
        addrs.push((link_local_of(port.mac(), 0), PREFIX_LEN));
    }
    Ok(())
}

fn link_of(port: &dyn Port, vlan: Option<VlanId>) -> Link {
    // Its index may not be there for a moment, while an interface is replaced: only link-local addresses need it.
    let zone = crate::kernel::index_of(port.name()).unwrap_or(0);
    Link { mac: port.mac(), zone, mtu: port.mtu(), caps: port.caps(), vlan }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_port::memory::{MemoryLink, pair};
    use toe_wire::link::{LinkCaps, MacAddr};

    #[test]
    fn a_quiet_port_is_looked_at_less_often_until_frames_come() {
        let link = |name: &str| MemoryLink {
            name: name.to_owned(),
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            caps: LinkCaps { tx_checksum: true, gso_max: 1460, ..LinkCaps::default() },
        };
        let (port, _peer) = pair(link("a"), link("b"));
        let mut slot = PortSlot {
            id: PortId(0),
            name: "a".to_owned(),
            addrs: Vec::new(),
            port: Box::new(port),
            spec: PortSpec { driver: Driver::Packet, interface: "a".to_owned(), vlan: None, faults: None },
            index: None,
            is_veth: false,
            must_reopen: false,
            retry_at: None,
            looks: PortLooks::default(),
            errors: 0,
        };
        let now = Instant::from_micros(1000);
        for _ in 1..QUIET_AFTER {
            slot.looked(now, 0);
        }
        assert!(slot.looks.next <= now, "not quiet yet");
        slot.looked(now, 0);
        assert_eq!(slot.looks.next, now.after_us(QUIET_LOOK_US));
        slot.looked(now.after_us(QUIET_LOOK_US), 1);
        assert!(slot.looks.next <= now, "frames came");
    }
}
