//! Where a row is played: the lab, an engine with a user's settings, and the commands for each stack. Used by `runner`,
//! `servers` and `clients`.

use crate::cpus::Placement;
use crate::error::{Error, Result};
use crate::options::Link;
use crate::row::Row;
use crate::sample::Stack;
use std::path::Path;
use std::process::Command;
use toe_lab::engine::{self, Engine};
use toe_lab::lab::{ENGINE_ADDR, ENGINE_LINK, KERNEL_ADDR, Lab, Side, Spot, TAP_ENGINE_ADDR, TAP_LINK};
use toe_lab::wait::{self, SOON};
use toe_lab::{child::Program, process};

/// Ports in namespaces, where nobody else listens.
const PORTS: [u16; 2] = [7001, 7002];

/// One row's engine and places.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) link: Link,
    pub(crate) placement: Placement,
    pub(crate) engine: Engine,
    ports: [u16; 2],
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
        let port = match row.link {
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
        let ports = if lab.has_namespaces() { PORTS } else { free_ports()? };
        Ok(Stage { lab, link: row.link, placement, engine, ports })
    }

    /// A command for the server's program.
    pub(crate) fn server(&self, stack: Stack, program: &Path) -> Command {
        let cpus = Some(self.placement.server.as_str());
        match stack {
            Stack::Toe => self.engine.run(self.lab, cpus, program),
            Stack::Linux => self.lab.command(Spot { side: Side::Server, cpus }, program),
        }
    }

    /// A command for the client's program.
    pub(crate) fn client(&self, stack: Stack, program: &Path) -> Command {
        let cpus = Some(self.placement.client.as_str());
        let side = match (self.link, stack) {
            (Link::Local, Stack::Toe) => return self.engine.run(self.lab, cpus, program),
            (Link::Local, Stack::Linux) | (Link::Tap, Stack::Toe) => Side::Server,
            (Link::Tap, Stack::Linux) | (Link::Veth, _) => Side::Client,
        };
        self.lab.command(Spot { side, cpus }, program)
    }

    /// The server's address, as the client knows it. Linux has no stack behind a TAP interface: there the engine is
    /// compared with a veth, the fastest link that Linux has to another stack.
    pub(crate) fn address(&self, stack: Stack) -> &'static str {
        match (self.link, stack) {
            (Link::Local, _) => "127.0.0.1",
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
