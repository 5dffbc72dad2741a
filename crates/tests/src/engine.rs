//! An engine under test, as [`toe_lab::engine`] starts it; here what fails is a failed test.

use crate::child::{self, Finished};
use crate::lab::{
    ENGINE_ADDR, ENGINE_ADDR6, ENGINE_LINK, Lab, PEER_ADDR, PEER_ADDR6, Side, TAP_ENGINE_ADDR,
    TAP_ENGINE_ADDR6, TAP_KERNEL_ADDR6, TAP_LINK,
};
use crate::must;
use crate::wait::SOON;
use std::process::Command;
use std::time::Duration;
use toe_abi::report::{SocketReport, StatusReport};
use toe_lab::engine::{self, Options};

/// A running engine; ended when this is dropped.
#[derive(Debug)]
pub struct Engine(engine::Engine);

impl Engine {
    /// An engine with the `local` port only.
    pub fn local(lab: &Lab) -> Engine {
        Engine::start(lab, Side::Server, None)
    }

    /// An engine on one end of the lab's link. `faults` is the part of the port that asks for them, such as
    /// `?drop=1%`, or nothing.
    pub fn on_link(lab: &Lab, side: Side, faults: &str) -> Engine {
        let addr = match side {
            Side::Server => ENGINE_ADDR,
            Side::Client => {
                must(lab.free_peer_addr());
                PEER_ADDR
            }
        };
        Engine::start(lab, side, Some((format!("packet:{ENGINE_LINK}{faults}"), addr)))
    }

    /// An engine on the server's end of the lab's link and at the address that its kernel has there.
    pub fn on_shared_link(lab: &Lab) -> Engine {
        Engine::on_bad_shared_link(lab, "")
    }

    /// The same with more that `toe start` is given.
    pub fn on_shared_link_with(lab: &Lab, settings: &[&str]) -> Engine {
        must(lab.share_engine_addr());
        let port = Some((format!("xdp:{ENGINE_LINK}"), ENGINE_ADDR));
        let options = Options { spot: Side::Server.into(), port, addr6: None, suffix: "", settings };
        Engine::started(lab, &options)
    }

    /// The same with `faults` as in [`Engine::on_link`].
    pub fn on_bad_shared_link(lab: &Lab, faults: &str) -> Engine {
        must(lab.share_engine_addr());
        Engine::start(lab, Side::Server, Some((format!("xdp:{ENGINE_LINK}{faults}"), ENGINE_ADDR)))
    }

    /// An engine on a TAP interface of its own in the server's namespace, whose kernel is its peer there.
    pub fn on_tap(lab: &Lab) -> Engine {
        let engine = Engine::start(lab, Side::Server, Some((format!("tap:{TAP_LINK}"), TAP_ENGINE_ADDR)));
        must(lab.give_tap_its_address());
        engine
    }

    /// An engine on an interface that something else made in the server's namespace.
    pub fn on_interface(lab: &Lab, interface: &str) -> Engine {
        Engine::start(lab, Side::Server, Some((format!("packet:{interface}"), TAP_ENGINE_ADDR)))
    }

    /// One more with the `local` port only, beside the first.
    pub fn another(lab: &Lab) -> Engine {
        let options =
            Options { spot: Side::Server.into(), port: None, addr6: None, suffix: "-another", settings: &[] };
        Engine::started(lab, &options)
    }

    /// An engine of both families on the server's end of the lab's link; the kernel at the other end is, too.
    pub fn of_both_families(lab: &Lab) -> Engine {
        must(lab.give_addr6(Side::Client, ENGINE_LINK, PEER_ADDR6));
        Engine::start_with(
            lab,
            Side::Server,
            Some((format!("packet:{ENGINE_LINK}"), ENGINE_ADDR)),
            Some(ENGINE_ADDR6),
        )
    }

    /// The same on a TAP interface of its own.
    pub fn of_both_families_on_tap(lab: &Lab) -> Engine {
        let port = Some((format!("tap:{TAP_LINK}"), TAP_ENGINE_ADDR));
        let engine = Engine::start_with(lab, Side::Server, port, Some(TAP_ENGINE_ADDR6));
        must(lab.give_tap_its_address());
        must(lab.give_addr6(Side::Server, TAP_LINK, TAP_KERNEL_ADDR6));
        engine
    }

    /// An engine with the `local` port only, with more that `toe start` is given.
    pub fn local_with(lab: &Lab, settings: &[&str]) -> Engine {
        let options = Options { spot: Side::Server.into(), port: None, addr6: None, suffix: "", settings };
        Engine::started(lab, &options)
    }

    /// An engine on the server's end of the lab's link, with more that `toe start` is given.
    pub fn on_link_with(lab: &Lab, settings: &[&str]) -> Engine {
        let port = Some((format!("packet:{ENGINE_LINK}"), ENGINE_ADDR));
        let options = Options { spot: Side::Server.into(), port, addr6: None, suffix: "", settings };
        Engine::started(lab, &options)
    }

    fn start(lab: &Lab, side: Side, port: Option<(String, &str)>) -> Engine {
        Engine::start_with(lab, side, port, None)
    }

    fn start_with(lab: &Lab, side: Side, port: Option<(String, &str)>, addr6: Option<&str>) -> Engine {
        let options = Options { spot: side.into(), port, addr6, suffix: "", settings: &[] };
        Engine::started(lab, &options)
    }

    fn started(lab: &Lab, options: &Options<'_>) -> Engine {
        let engine = Engine(must(engine::Engine::start(lab, options)));
        engine.weigh();
        engine
    }

    /// `toe start` with this engine's name, after it was killed.
    pub fn start_again(&mut self, lab: &Lab) {
        must(self.0.start_again(lab));
        self.weigh();
    }

    /// Linux shares processors out between sessions first (sched(7), autogroups), and an engine has one to itself. Beside a session with
    /// the busy threads of many tests it was kept from two processors for up to two seconds: then what a test counts as the engine's
    /// was rightly the kernel's. Not where that cannot be asked for.
    fn weigh(&self) {
        let _ = std::fs::write(format!("/proc/{}/autogroup", self.pid()), "-10");
    }

    pub fn name(&self) -> &str {
        self.0.name()
    }

    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// The engine's address on its link.
    pub fn addr(&self) -> &str {
        self.0.addr()
    }

    /// `program` on this engine: `toe run --name … -- program`.
    pub fn run(&self, lab: &Lab, program: &str) -> Command {
        self.0.run(lab, None, program)
    }

    /// The reply to `toe status`.
    pub fn status(&self) -> StatusReport {
        must(self.0.status())
    }

    /// The reply to `toe ss`.
    pub fn sockets(&self) -> Vec<SocketReport> {
        must(self.0.sockets())
    }

    /// Flows that some program holds.
    pub fn held_flows(&self) -> Vec<SocketReport> {
        must(self.0.held_flows())
    }

    /// Waits until a program listens on `port` here.
    pub fn wait_for_listener(&self, port: u16) -> SocketReport {
        must(self.0.wait_for_listener(port))
    }

    /// Waits until no program holds a flow and all receive memory is back; gives the time it took.
    pub fn wait_until_idle(&self, limit: Duration) -> Duration {
        must(self.0.wait_until_idle(limit))
    }

    /// `toe why PID FD`.
    pub fn why(&self, lab: &Lab, pid: u32, fd: u32) -> Finished {
        let mut command = self.0.toe(lab, &["why", &pid.to_string(), &fd.to_string()]);
        child::run("toe why", &mut command, SOON)
    }

    /// `kill -9` of the engine.
    pub fn kill_hard(&self) {
        must(self.0.kill_hard());
    }

    /// What the engine logged.
    pub fn log(&self) -> String {
        self.0.log()
    }
}
