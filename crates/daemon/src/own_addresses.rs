//! Addresses that are to be this engine's alone. That the kernel has one, or another engine, is told at the start: nobody who
//! connects to it would find out why nothing answers. Called by `main` before it gives up root's rights.

use crate::config::PortConfig;
use nix::sys::socket::{setsockopt, sockopt::BindToDevice};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::net::{IpAddr, SocketAddr};

/// The kernel keeps names, these too: who has this port number of UDP at an address and interface has the address there. No user
/// without rights can take it (ip_unprivileged_port_start), and nothing is ever received by it.
const NAME_PORT: u16 = 1;

/// Why an address cannot be the engine's, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Taken {
    #[error(
        "--addr {addr}: the kernel has this address on {interface}, and would answer for it: give the engine another, take it from \
         there (ip addr del), or share it by --port xdp:{interface}"
    )]
    ByKernel { addr: IpAddr, interface: String },
    #[error(
        "--addr {addr}: another engine has this address on {interface}: stop that one ('toe status --all'), or give another"
    )]
    ByEngine { addr: IpAddr, interface: String },
    #[error("which addresses the kernel has cannot be found out ({0})")]
    Unknown(#[from] nix::errno::Errno),
}

/// The engine's addresses, for as long as this is held.
#[derive(Debug)]
pub struct OwnAddresses {
    _names: Vec<OwnedFd>,
}

impl OwnAddresses {
    /// Takes those of all ports that share none with the kernel.
    pub fn take(ports: &[PortConfig]) -> Result<OwnAddresses, Taken> {
        let own = ports.iter().filter(|port| !port.spec.driver.shares_address());
        let own =
            own.flat_map(|port| port.addrs.iter().map(|cidr| (cidr.addr, port.spec.interface.as_str())));
        let mut names = Vec::new();
        for (addr, interface) in own {
            if let Some(interface) = interface_with(addr)? {
                return Err(Taken::ByKernel { addr, interface });
            }
            match name(addr, interface) {
                Ok(socket) => names.push(socket),
                Err(Errno::ADDRINUSE) => {
                    return Err(Taken::ByEngine { addr, interface: interface.to_owned() });
                }
                // Without the right to such a number nothing is known of other engines.
                Err(error) => tracing::debug!(%addr, interface, %error, "address not taken in the kernel"),
            }
        }
        Ok(OwnAddresses { _names: names })
    }
}

/// The interface of this network namespace on which the kernel has the address.
fn interface_with(addr: IpAddr) -> Result<Option<String>, Taken> {
    let has = |found: &nix::ifaddrs::InterfaceAddress| {
        let storage = found.address.as_ref()?;
        let v4 = storage.as_sockaddr_in().map(|found| IpAddr::V4(found.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|found| IpAddr::V6(found.ip())))
    };
    let mut all = nix::ifaddrs::getifaddrs()?;
    Ok(all.find(|found| has(found) == Some(addr)).map(|found| found.interface_name))
}

/// A socket that has the name of an address at an interface.
fn name(addr: IpAddr, interface: &str) -> Result<OwnedFd, Errno> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if addr.is_ipv4() {
        sockopt::set_ip_freebind(&socket, true)?;
    } else {
        sockopt::set_ipv6_freebind(&socket, true)?;
    }
    setsockopt(&socket, BindToDevice, &interface.into())
        .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    rustix::net::bind(&socket, &SocketAddr::new(addr, NAME_PORT))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_kernels_is_found() {
        let found = interface_with("127.0.0.1".parse().expect("an address")).expect("a list");
        assert_eq!(found.as_deref(), Some("lo"));
        assert_eq!(interface_with("192.0.2.77".parse().expect("an address")).expect("a list"), None);
    }

    #[test]
    fn an_address_has_one_owner_at_an_interface() {
        let addr = "192.0.2.78".parse().expect("an address");
        let Ok(first) = name(addr, "lo") else {
            println!("not tried: it takes the right to port numbers below 1024");
            return;
        };
        assert_eq!(name(addr, "lo").expect_err("taken"), Errno::ADDRINUSE);
        drop(first);
        name(addr, "lo").expect("free again");
    }
}
