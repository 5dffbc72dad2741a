//! From a [`PortSpec`] to a [`Port`]. Called by `toed` and `toe-cable` at their start.

use crate::error::OpenError;
use crate::fault::{FaultPort, monotonic_clock};
use crate::packet::PacketPort;
use crate::port::Port;
use crate::spec::{Driver, PortSpec};
use crate::tap::TapPort;
use crate::xdp::XdpPort;

/// Opens the port, and brings its interface up unless that is shared with the kernel: then it is the administrator's.
pub fn open(spec: &PortSpec) -> Result<Box<dyn Port>, OpenError> {
    let port: Box<dyn Port> = match spec.driver {
        Driver::Tap => Box::new(TapPort::open(&spec.interface)?),
        Driver::Packet => Box::new(PacketPort::open(&spec.interface)?),
        Driver::Xdp => Box::new(XdpPort::open(&spec.interface)?),
    };
    Ok(with_faults(port, spec))
}

/// Opens the end of a cable, a TAP: all that the kernel sends there, as it would be on a wire.
pub fn open_cable_end(spec: &PortSpec) -> Result<Box<dyn Port>, OpenError> {
    let interface = &spec.interface;
    if spec.driver != Driver::Tap {
        return Err(OpenError::NotACableEnd { driver: spec.driver, interface: interface.clone() });
    }
    Ok(with_faults(Box::new(TapPort::open_cable_end(interface)?), spec))
}

fn with_faults(port: Box<dyn Port>, spec: &PortSpec) -> Box<dyn Port> {
    match &spec.faults {
        Some(plan) => Box::new(FaultPort::new(port, plan.clone(), monotonic_clock())),
        None => port,
    }
}
