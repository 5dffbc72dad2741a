//! The engine's process, with a link in this thread's namespace.

use super::LinkKind;
use crate::script::{ConnName, InfoName, Setting, SettingName, StateName};
use crate::stack::{StackError, far_port, number_of};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use toe_abi::report::{SocketReport, SocketsReport};

/// How long an engine may take to start on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A running engine; killed when this is dropped.
pub(super) struct EngineProcess {
    child: Child,
    toe: PathBuf,
    pub(super) name: String,
}

impl EngineProcess {
    /// Starts `toed` of the folder `programs` and waits until it answers.
    pub(super) fn start(
        programs: &Path,
        link: LinkKind,
        setup: &[Setting],
    ) -> Result<EngineProcess, StackError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("toescript-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let child = Command::new(programs.join("toed"))
            .args(["--name", &name])
            .args(link.flags())
            .args(setup.iter().filter_map(flag_of))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                StackError::new(&format!("starting {}/toed (make programs)", programs.display()), error)
            })?;
        let mut engine = EngineProcess { child, toe: programs.join("toe"), name };
        let start = Instant::now();
        while engine.sockets().is_err() {
            if let Ok(Some(status)) = engine.child.try_wait() {
                return Err(StackError(format!("toed ended at its start: {status}")));
            }
            if start.elapsed() > START_LIMIT {
                return Err(StackError("toed does not answer".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(engine)
    }

    fn sockets(&self) -> Result<SocketsReport, StackError> {
        let output = Command::new(&self.toe)
            .args(["ss", "--json", "--name", &self.name])
            .stderr(Stdio::null())
            .output()
            .map_err(|error| StackError::new("running toe ss", error))?;
        serde_json::from_slice(&output.stdout)
            .map_err(|error| StackError::new("reading toe ss --json", error))
    }

    /// The state of a connection, which the program may not have any more.
    pub(super) fn state(&self, conn: ConnName) -> Result<StateName, StackError> {
        Ok(self.socket(conn)?.map_or(StateName::Closed, |socket| StateName::of_ss(&socket.state)))
    }

    pub(super) fn info(&self, conn: ConnName, name: InfoName) -> Result<i64, StackError> {
        let tcp = self.socket(conn)?.and_then(|socket| socket.tcp);
        let tcp = tcp.ok_or_else(|| StackError("there is no such connection".to_owned()))?;
        Ok(number_of(&tcp, name))
    }

    fn socket(&self, conn: ConnName) -> Result<Option<SocketReport>, StackError> {
        let suffix = format!(":{}", far_port(conn));
        let mut sockets = self.sockets()?.sockets.into_iter();
        Ok(sockets.find(|s| s.state != "LISTEN" && s.remote.ends_with(&suffix)))
    }
}

/// The flag of `toed` that sets an engine up so; `None`: it has none.
pub(super) fn flag_of(setting: &Setting) -> Option<String> {
    let flag = match setting.name {
        SettingName::Ecn => "ecn",
        SettingName::Congestion => "congestion",
        SettingName::FastOpen => "fast-open",
        SettingName::SynCookies => "syn-cookies",
        SettingName::Rfc1337 => "rfc1337",
        _ => return None,
    };
    Some(format!("--{flag}={}", setting.value))
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
