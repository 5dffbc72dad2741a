//! The engine's links as the run loop drives them: frames in, frames out, and what happens when a link fails.
//!
//! A failing link (its interface was taken down or removed) is logged, counted and looked at again once a second; the
//! engine goes on with the others.

use crate::config::PortConfig;
use crate::poller::{Poller, Token};
use crate::session::Sessions;
use toe_base::{Instant, PortId};
use toe_engine::{Engine, Link};
use toe_port::Port;

/// Frames taken from, and given to, one port in one round.
const FRAMES_PER_ROUND: usize = 256;
/// Looks in vain, one after the other, that make a port quiet.
const QUIET_AFTER: u32 = 64;
/// How often a quiet port is looked at. Each look is a system call, which rounds of local traffic need not pay; and a
/// frame that waits so long has waited longer in its sender's interrupt.
const QUIET_LOOK_US: u64 = 10;
/// How often ports are tended that want it.
const TEND_EVERY_US: u64 = 1_000_000;
/// How long a port that failed is left alone.
const RETRY_AFTER_US: u64 = 1_000_000;

/// One link.
pub struct PortSlot {
    pub id: PortId,
    /// `DRIVER:IFNAME` as given.
    pub name: String,
    pub addrs: Vec<String>,
    pub port: Box<dyn Port>,
    /// Set while the port is left alone after a failure.
    retry_at: Option<Instant>,
    /// Looks in vain since the last frame, and when to look again.
    vain: u32,
    look_at: Instant,
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
        let id = engine.add_port(Link { mac: port.mac(), mtu: port.mtu(), caps: port.caps() });
        for cidr in &config.addrs {
            engine.add_addr(id, cidr.addr, cidr.prefix_len);
        }
        if let Some(gateway) = config.gateway {
            engine.set_gateway(id, gateway);
        }
        let slot = PortSlot {
            id,
            name: config.spec.to_string(),
            addrs: config.addrs.iter().map(ToString::to_string).collect(),
            port,
            retry_at: None,
            vain: 0,
            look_at: Instant::ZERO,
            errors: 0,
        };
        self.watch(poller, &slot)?;
        let (mac, mtu) = (slot.port.mac(), slot.port.mtu());
        tracing::info!(port = slot.name, %mac, mtu, addrs = ?slot.addrs, gateway = config.gateway.map(tracing::field::display), "port open");
        self.slots.push(slot);
        Ok(())
    }

    fn watch(&self, poller: &Poller, slot: &PortSlot) -> std::io::Result<()> {
        slot.port.poll_fd().map_or(Ok(()), |fd| poller.add(fd, Token::Port(slot.id.0)))
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
            if !slot.may_try(now, poller) || now < slot.look_at {
                continue;
            }
            let id = slot.id;
            let result = slot.port.receive(FRAMES_PER_ROUND, &mut |frame, offload| {
                engine.handle_frame(now, id, frame, offload, sessions);
            });
            match result {
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

    /// The port's name for reports; `None` is the engine's own.
    pub fn name(&self, id: Option<PortId>) -> &str {
        let found = id.and_then(|id| self.slots.iter().find(|slot| slot.id == id));
        found.map_or("local", |slot| slot.name.as_str())
    }
}

impl PortSlot {
    /// Frames wait there.
    pub fn stir(&mut self) {
        self.vain = 0;
        self.look_at = Instant::ZERO;
    }

    /// Notes how many frames a look found.
    fn looked(&mut self, now: Instant, frames: usize) {
        if frames > 0 {
            self.stir();
            return;
        }
        self.vain = self.vain.saturating_add(1);
        if self.vain >= QUIET_AFTER {
            self.look_at = now.after_us(QUIET_LOOK_US);
        }
    }

    /// Whether the port works, or is to be tried again now.
    fn may_try(&mut self, now: Instant, poller: &Poller) -> bool {
        match self.retry_at {
            None => true,
            Some(at) if now < at => false,
            Some(_) => {
                self.retry_at = None;
                if let Some(fd) = self.port.poll_fd()
                    && let Err(error) = poller.add(fd, Token::Port(self.id.0))
                {
                    tracing::warn!(port = self.name, %error, "port cannot be watched");
                }
                true
            }
        }
    }

    /// Leaves the port alone for a while: its descriptor would report the failure without end.
    fn failed(&mut self, now: Instant, poller: &Poller, what: &str, error: &std::io::Error) {
        self.errors += 1;
        // One line for the first failure of a row, then one for each power of two.
        if self.errors.is_power_of_two() {
            tracing::warn!(port = self.name, errors = self.errors, %error, "port failed to {what}; trying again");
        }
        if let Some(fd) = self.port.poll_fd() {
            poller.remove(fd);
        }
        self.retry_at = Some(now.after_us(RETRY_AFTER_US));
    }
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
            caps: LinkCaps { tx_checksum: true, gso_max: 1460 },
        };
        let (port, _peer) = pair(link("a"), link("b"));
        let mut slot = PortSlot {
            id: PortId(0),
            name: "a".to_owned(),
            addrs: Vec::new(),
            port: Box::new(port),
            retry_at: None,
            vain: 0,
            look_at: Instant::ZERO,
            errors: 0,
        };
        let now = Instant::from_micros(1000);
        for _ in 1..QUIET_AFTER {
            slot.looked(now, 0);
        }
        assert!(slot.look_at <= now, "not quiet yet");
        slot.looked(now, 0);
        assert_eq!(slot.look_at, now.after_us(QUIET_LOOK_US));
        slot.looked(now.after_us(QUIET_LOOK_US), 1);
        assert!(slot.look_at <= now, "frames came");
    }
}
