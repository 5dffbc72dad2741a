//! The namespace with Linux's end of the link, and frames to and from it.

use super::LINUX;
use super::choice::{Choice, LinuxSpec};
use crate::network::mac_of;
use crate::node::address_of;
use crate::world::World;
use std::os::fd::BorrowedFd;
use toe_port::{Driver, Port, PortSpec};
use toe_script::far_link;
use toe_script::namespace::{enter_alone, ip, sysctl};
use toe_script::stack::StackError;
use toe_wire::link::TxOffload;

const LINK: &str = "sim0";

/// See the module.
pub(super) struct Far {
    port: Box<dyn Port>,
}

impl Far {
    /// Moves this thread into a namespace of its own.
    pub(super) fn open(choice: &Choice) -> Result<Far, StackError> {
        enter_alone()?;
        let LinuxSpec { sack, timestamps, window_scaling, ecn, mtu, memory, fast_open, .. } = choice.linux;
        let flag = |on: bool| if on { "1" } else { "0" };
        sysctl("ipv4/tcp_no_metrics_save", "1")?;
        sysctl("ipv4/tcp_sack", flag(sack))?;
        sysctl("ipv4/tcp_timestamps", flag(timestamps))?;
        sysctl("ipv4/tcp_window_scaling", flag(window_scaling))?;
        sysctl("ipv4/tcp_ecn", flag(ecn))?;
        // 0x400: each listener takes connections so.
        let fast_open = u32::from(fast_open.client()) + if fast_open.server() { 0x402 } else { 0 };
        sysctl("ipv4/tcp_fastopen", &fast_open.to_string())?;
        // What these links lose is no reason to try it no more.
        sysctl("ipv4/tcp_fastopen_blackhole_timeout_sec", "0")?;
        sysctl("ipv4/tcp_rmem", &format!("4096 {} {memory}", memory.min(131_072)))?;
        sysctl("ipv4/tcp_wmem", &format!("4096 {} {memory}", memory.min(131_072)))?;
        let spec = PortSpec { driver: Driver::Tap, interface: LINK.to_owned(), vlan: None, faults: None };
        let port =
            toe_port::open_cable_end(&spec).map_err(|error| StackError::new("opening the link", error))?;
        ip(&format!(
            "link set {LINK} address {} mtu {mtu} up\naddr add {}/24 dev {LINK}\n",
            mac_of(LINUX),
            address_of(LINUX),
        ))?;
        Ok(Far { port })
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.poll_fd()
    }

    /// What Linux has sent goes to the links.
    pub(super) fn take(&mut self, world: &mut World) -> Result<(), StackError> {
        let mut frames = Vec::new();
        far_link::receive(&mut *self.port, &mut frames)?;
        for (frame, _) in frames {
            world.leave_outside(LINUX, frame, TxOffload::default());
        }
        Ok(())
    }

    /// What has come through the links goes to Linux.
    pub(super) fn give(&mut self, world: &mut World) -> Result<(), StackError> {
        for flight in world.outside.frames.drain(..) {
            // Without room it is lost, as on a busy wire.
            if let Some(frame) = self.port.transmit().frame(flight.frame.len()) {
                frame.copy_from_slice(&flight.frame);
                self.port.transmit().commit(TxOffload::default());
            }
            self.port.flush().map_err(|error| StackError::new("sending frames to Linux", error))?;
        }
        Ok(())
    }
}
