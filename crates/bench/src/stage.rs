//! Where a row is played: the lab, an engine with a user's settings, and the commands for each stack. Used by `runner`,
//! `servers` and `clients`.

use crate::cpus::Placement;
use crate::error::{Error, Result};
use crate::options::{Link, Workload};
use crate::row::Row;
use crate::sample::Stack;
use std::path::Path;
use std::process::Command;
use toe_lab::cable::Cable;
use toe_lab::engine::{self, Engine};
use toe_lab::lab::{
    ENGINE_ADDR, ENGINE_LINK, KERNEL_ADDR, KERNEL_PEER_ADDR, Lab, PEER_ADDR, Side, Spot, TAP_ENGINE_ADDR,
    TAP_LINK,
};
use toe_lab::wait::{self, SOON};
use toe_lab::{child::Program, process};

/// Ports in namespaces, where nobody else listens.
const PORTS: [u16; 2] = [7001, 7002];

/// Slow wires, and the addresses at their ends; the engine's has no address of the kernel's.
const ENGINE_WIRE: &str = "slowtoe";
const WIRE_ENGINE_ADDR: &str = "10.80.0.2";
const WIRE_ENGINE_PEER_ADDR: &str = "10.80.0.1";
const KERNEL_WIRE: &str = "slowkern";
const WIRE_KERNEL_ADDR: &str = "10.81.0.2";
const WIRE_KERNEL_PEER_ADDR: &str = "10.81.0.1";

/// One row's engine and places.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) link: Link,
    pub(crate) placement: Placement,
    pub(crate) engine: Engine,
    /// That of the client's end of the link, where messages go from engine to engine.
    peer: Option<Engine>,
    ports: [u16; 2],
    /// The client is the one on the measured stack, and the server its peer.
    is_turned: bool,
    /// The engine's and the kernel's, where the link is slow.
    _cables: Vec<Cable>,
}

impl<'a> Stage<'a> {
    /// Starts a fresh engine for the row, as `toe start` does with these settings and no other.
    pub(crate) fn new(
        lab: &'a Lab,
        row: &Row,
        placement: Placement,
        settings: &[String],
    ) -> Result<Stage<'a>> {
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let mut cables = Vec::new();
        let port = match row.link {
            Link::Mbit10 | Link::Mbit100 => {
                cables = slow_wires(lab, row.link)?;
                Some((format!("packet:{ENGINE_WIRE}-s"), WIRE_ENGINE_ADDR))
            }
            Link::Local => None,
            Link::Veth => Some((format!("packet:{ENGINE_LINK}"), ENGINE_ADDR)),
            Link::Tap => Some((format!("tap:{TAP_LINK}"), TAP_ENGINE_ADDR)),
        };
        let spot = Spot { side: Side::Server, cpus: Some(&placement.engine) };
        let engine = Engine::start(
            lab,
            &engine::Options { spot, port, addr6: None, suffix: "", settings: &settings },
        )?;
        if row.link == Link::Tap {
            lab.give_tap_its_address()?;
        }
        let peer = match (row.workload, row.link) {
            (Workload::Via, Link::Veth) => Some(peer_engine(lab, &placement.engine, &settings)?),
            _ => None,
        };
        let ports = if lab.has_namespaces() { PORTS } else { free_ports()? };
        let is_turned = row.workload == Workload::File && row.link != Link::Local;
        Ok(Stage { lab, link: row.link, placement, engine, peer, ports, is_turned, _cables: cables })
    }

    /// A command for the server's program.
    pub(crate) fn server(&self, stack: Stack, program: &Path) -> Command {
        let cpus = Some(self.placement.server.as_str());
        if self.is_turned {
            return self.lab.command(Spot { side: Side::Client, cpus }, program);
        }
        match stack {
            Stack::Toe => self.engine.run(self.lab, cpus, program),
            Stack::Linux => self.lab.command(Spot { side: Side::Server, cpus }, program),
        }
    }

    /// A command for the client's program.
    pub(crate) fn client(&self, stack: Stack, program: &Path) -> Command {
        let cpus = Some(self.placement.client.as_str());
        let side = match (self.link, stack) {
            (_, Stack::Toe) if self.is_turned => return self.engine.run(self.lab, cpus, program),
            (_, Stack::Linux) if self.is_turned => Side::Server,
            (Link::Local, Stack::Toe) => return self.engine.run(self.lab, cpus, program),
            (Link::Local, Stack::Linux) | (Link::Tap, Stack::Toe) => Side::Server,
            (Link::Tap, Stack::Linux) | (Link::Veth | Link::Mbit10 | Link::Mbit100, _) => Side::Client,
        };
        self.lab.command(Spot { side, cpus }, program)
    }

    /// A command for the client's program that is written for OpenTOE, and by which name it finds the server's node.
    pub(crate) fn message_client(&self, program: &Path) -> (Command, &'static str) {
        match &self.peer {
            Some(peer) => {
                let cpus = Some(self.placement.client.as_str());
                (peer.native(self.lab, cpus, program), ENGINE_ADDR)
            }
            None => (self.client(Stack::Toe, program), "localhost"),
        }
    }

    /// The same for a program that is written for OpenTOE.
    pub(crate) fn native_client(&self, program: &Path) -> Command {
        self.engine.native(self.lab, Some(self.placement.client.as_str()), program)
    }

    /// The server's address, as the client knows it. Linux has no stack behind a TAP interface: there the engine is
    /// compared with a veth, the fastest link that Linux has to another stack.
    pub(crate) fn address(&self, stack: Stack) -> &'static str {
        match (self.link, stack) {
            (Link::Local, _) => "127.0.0.1",
            (Link::Veth, Stack::Linux) if self.is_turned => KERNEL_PEER_ADDR,
            (Link::Veth, Stack::Toe) if self.is_turned => PEER_ADDR,
            (Link::Mbit10 | Link::Mbit100, Stack::Linux) => WIRE_KERNEL_PEER_ADDR,
            (Link::Mbit10 | Link::Mbit100, Stack::Toe) => WIRE_ENGINE_PEER_ADDR,
            (Link::Veth | Link::Tap, Stack::Linux) => KERNEL_ADDR,
            (Link::Veth, Stack::Toe) => ENGINE_ADDR,
            (Link::Tap, Stack::Toe) => TAP_ENGINE_ADDR,
        }
    }

    pub(crate) fn port(&self, stack: Stack) -> u16 {
        match stack {
            Stack::Linux => self.ports[0],
            Stack::Toe => self.ports[1],
        }
    }

    /// Waits until the server listens on its stack.
    pub(crate) fn wait_for_listener(&self, stack: Stack, server: &mut Program) -> Result<()> {
        self.wait_for_listener_at(stack, server, self.port(stack))
    }

    /// The same of a port that is not the server's own.
    pub(crate) fn wait_for_listener_at(&self, stack: Stack, server: &mut Program, port: u16) -> Result<()> {
        let what = format!("{} listens on {}", server.name().to_owned(), stack.title());
        wait::until(&what, SOON, || {
            if !server.is_running() {
                return Err(toe_lab::Error::failed(server.name(), format!("ended\n{}", server.output())));
            }
            let listens = match stack {
                Stack::Linux => process::listens_on_kernel(server.pid(), port),
                Stack::Toe if self.is_turned => process::listens_on_kernel(server.pid(), port),
                Stack::Toe => {
                    let suffix = format!(":{port}");
                    let sockets = self.engine.sockets()?;
                    sockets.iter().any(|s| s.state == "LISTEN" && s.local.ends_with(&suffix))
                }
            };
            Ok(listens.then_some(()))
        })?;
        Ok(())
    }
}

/// A wire for the engine and one for Linux: each has its own.
fn slow_wires(lab: &Lab, link: Link) -> Result<Vec<Cable>> {
    let rate_kbit = link.rate_kbit().unwrap_or_default();
    let (engine, kernel) =
        (Cable::new(lab, ENGINE_WIRE, rate_kbit)?, Cable::new(lab, KERNEL_WIRE, rate_kbit)?);
    engine.give_addr(lab, Side::Client, WIRE_ENGINE_PEER_ADDR)?;
    kernel.give_addr(lab, Side::Server, WIRE_KERNEL_ADDR)?;
    kernel.give_addr(lab, Side::Client, WIRE_KERNEL_PEER_ADDR)?;
    Ok(vec![engine, kernel])
}

/// A port that nobody has now; in a lab of namespaces, where nobody else is, that is as good as any.
pub(crate) fn free_port() -> Result<u16> {
    free_ports().map(|[port, _]| port)
}

/// Two ports that nobody has now.
fn free_ports() -> Result<[u16; 2]> {
    let bind = || std::net::TcpListener::bind(("127.0.0.1", 0));
    let pair = || -> std::io::Result<[u16; 2]> {
        // Both are held until both are known, so they differ.
        let (one, other) = (bind()?, bind()?);
        Ok([one.local_addr()?.port(), other.local_addr()?.port()])
    };
    pair().map_err(|error| Error::failed("a free TCP port on 127.0.0.1", error))
}

/// An engine at the client's end of the link, with the address that the kernel has there else.
fn peer_engine(lab: &Lab, cpus: &str, settings: &[&str]) -> Result<Engine> {
    lab.free_peer_addr()?;
    let spot = Spot { side: Side::Client, cpus: Some(cpus) };
    let port = Some((format!("packet:{ENGINE_LINK}"), PEER_ADDR));
    Ok(Engine::start(lab, &engine::Options { spot, port, addr6: None, suffix: "", settings })?)
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if self.peer.take().is_some() {
            // The rows that follow have the kernel there.
            let _ = self.lab.give_peer_addr();
        }
    }
}
