//! The program above the whole stack: a Python interpreter, unmodified, under `toe run`. What it does stands in
//! `program.py`.

use crate::packet::FAR_ADDR;
use crate::script::{Call, ConnName, SocketOption};
use crate::stack::{LISTEN_PORT, Outcome, StackError, far_port};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use toe_abi::errno::Errno;

/// Else the kernel would do what the engine does not, and at an address of both it could not be told from it.
const POLICY: &str = "[policy]\nstack = \"engine-only\"\n";

/// A running program; killed when this is dropped.
pub(super) struct Program {
    child: Child,
    policy: PathBuf,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Program {
    pub(super) fn start(toe: &Path, engine: &str) -> Result<Program, StackError> {
        let failed = |error| StackError::new("running python3 under toe run", error);
        let policy = std::env::temp_dir().join(format!("{engine}.toml"));
        std::fs::write(&policy, POLICY).map_err(|error| StackError::new("writing the policy", error))?;
        let mut child = Command::new(toe)
            .args(["run", "--name", engine, "--config"])
            .arg(&policy)
            .args(["--", "python3", "-u", "-c", include_str!("program.py")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let (Some(asks), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(StackError("the program has no pipes".to_owned()));
        };
        Ok(Program { child, policy, asks, answers: BufReader::new(answers) })
    }

    pub(super) fn call(&mut self, conn: ConnName, call: &Call, bytes: &[u8]) -> Result<Outcome, StackError> {
        let line = line_of(conn, call, bytes)?;
        self.asks.write_all(line.as_bytes()).map_err(|error| StackError::new("asking the program", error))?;
        let mut answer = String::new();
        self.answers
            .read_line(&mut answer)
            .map_err(|error| StackError::new("hearing from the program", error))?;
        let (word, rest) = answer.trim_end().split_once(' ').unwrap_or((answer.trim_end(), ""));
        Ok(match word {
            "ok" => Outcome::Done,
            "nothing" => Outcome::Nothing,
            "eof" => Outcome::EndOfFile,
            "errno" => Outcome::Error(Errno(rest.parse().unwrap_or_default())),
            "number" => Outcome::Number(rest.parse().unwrap_or_default()),
            "data" => Outcome::Bytes(from_hex(rest)),
            _ => return Err(StackError(format!("the program says: {}", answer.trim_end()))),
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.policy);
    }
}

/// What the program is told, with its newline.
fn line_of(conn: ConnName, call: &Call, bytes: &[u8]) -> Result<String, StackError> {
    let name = conn.letter();
    Ok(match call {
        Call::Listen { backlog } => format!("listen {name} {LISTEN_PORT} {backlog}\n"),
        Call::CloseListener => format!("unlisten {name}\n"),
        Call::Connect { from, fast: None } => {
            format!("connect {name} {FAR_ADDR} {} {from}\n", far_port(conn))
        }
        Call::Connect { from, fast: Some(_) } => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("connect {name} {FAR_ADDR} {} {from} {hex}\n", far_port(conn))
        }
        Call::Connected(_) => format!("connected {name}\n"),
        Call::Accept(_) => format!("accept {name}\n"),
        Call::Send { more, urgent, end_of_record, .. } => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let flags = [more, urgent, end_of_record].map(|flag| u8::from(*flag).to_string()).join(" ");
            format!("send {name} {flags} {hex}\n")
        }
        Call::Read { len, .. } => format!("read {name} {len}\n"),
        Call::Shutdown { read, .. } => format!("shutdown {name} {}\n", u8::from(*read)),
        Call::Close => format!("close {name} 0\n"),
        Call::Abort => format!("close {name} 1\n"),
        Call::Set(option, value) => format!("set {name} {} {value}\n", option_name(*option)),
        Call::AtMark(_) => format!("mark {name}\n"),
        Call::ErrorIs(_) => format!("error {name}\n"),
        Call::State(_) | Call::Info(..) => {
            return Err(StackError(format!("the program cannot do {call:?}")));
        }
    })
}

const fn option_name(option: SocketOption) -> &'static str {
    match option {
        SocketOption::NoDelay => "nodelay",
        SocketOption::Cork => "cork",
        SocketOption::KeepAlive => "keepalive",
        SocketOption::KeepIdle => "keepidle",
        SocketOption::KeepInterval => "keepintvl",
        SocketOption::KeepCount => "keepcnt",
        SocketOption::UserTimeoutMs => "user-timeout",
        SocketOption::ReceiveBuffer => "rcvbuf",
        SocketOption::TimeToLive => "ttl",
        SocketOption::ReceiveErrors => "recverr",
        SocketOption::DeferAccept => "defer-accept",
        SocketOption::NotSentLowWater => "notsent-lowat",
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let byte = |at: usize| text.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    (0..text.len()).step_by(2).map_while(byte).collect()
}
