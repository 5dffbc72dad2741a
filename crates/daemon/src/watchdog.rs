//! What a service manager is told over the socket that it names (sd_notify(3)): that the engine is ready, and then, from its rounds, that it
//! goes round. One that stands still says nothing, whatever holds it, and is ended and started again (WatchdogSec= of systemd.service(5)).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use toe_base::Instant;

/// A way to the service manager.
#[derive(Debug)]
pub struct Watchdog {
    socket: UnixDatagram,
    /// `None`: it does not want to hear more than that the engine is ready.
    every_us: Option<u64>,
    next: Instant,
}

impl Watchdog {
    /// As the environment of process `pid` names it (`variable`).
    pub fn from(variable: impl Fn(&str) -> Option<String>, pid: u32) -> std::io::Result<Option<Watchdog>> {
        let Some(path) = variable("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else { return Ok(None) };
        let address = match path.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        let is_meant = variable("WATCHDOG_PID").is_none_or(|wanted| wanted.parse() == Ok(pid));
        let limit_us =
            variable("WATCHDOG_USEC").filter(|_| is_meant).and_then(|limit| limit.parse::<u64>().ok());
        // Twice within the limit, as sd_watchdog_enabled(3) has it.
        let every_us = limit_us.map(|limit| (limit / 2).max(1));
        Ok(Some(Watchdog { socket, every_us, next: Instant::ZERO }))
    }

    pub fn ready(&self) {
        self.say("READY=1");
    }

    /// Called in each round that looks outside.
    pub(crate) fn beat(&mut self, now: Instant) {
        if let Some(every_us) = self.every_us.filter(|_| now >= self.next) {
            self.next = now.after_us(every_us);
            self.say("WATCHDOG=1");
        }
    }

    pub(crate) fn next(&self) -> Instant {
        self.every_us.map_or(Instant::FAR_FUTURE, |_| self.next)
    }

    fn say(&self, what: &str) {
        // A manager that does not read hears of the next time.
        let _ = self.socket.send(what.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::TempDir;

    #[test]
    fn the_manager_hears_of_rounds_as_often_as_it_wants() {
        let dir = TempDir::new();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        manager.set_nonblocking(true).expect("non-blocking");
        let hears = || {
            let mut said = [0; 64];
            manager.recv(&mut said).map(|len| String::from_utf8_lossy(&said[..len]).into_owned()).ok()
        };
        let of = |pid: &'static str, variable: &str| match variable {
            "NOTIFY_SOCKET" => Some(path.display().to_string()),
            "WATCHDOG_USEC" => Some("2000".to_owned()),
            "WATCHDOG_PID" => Some(pid.to_owned()),
            _ => None,
        };
        let mut watchdog = Watchdog::from(|name| of("7", name), 7).expect("a way").expect("one is named");
        watchdog.ready();
        assert_eq!(hears().as_deref(), Some("READY=1"));
        let start = Instant::from_micros(10_000);
        watchdog.beat(start);
        watchdog.beat(start.after_us(999));
        assert_eq!((hears().as_deref(), hears()), (Some("WATCHDOG=1"), None));
        assert_eq!(watchdog.next(), start.after_us(1000));
        watchdog.beat(start.after_us(1000));
        assert_eq!(hears().as_deref(), Some("WATCHDOG=1"));

        let mut others = Watchdog::from(|name| of("8", name), 7).expect("a way").expect("one is named");
        others.beat(start);
        assert_eq!((hears(), others.next()), (None, Instant::FAR_FUTURE));
        assert!(Watchdog::from(|_| None, 7).expect("no way").is_none());
    }
}
