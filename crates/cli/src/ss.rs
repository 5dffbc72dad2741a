//! `toe ss`: the engine's sockets, in the columns of `ss -tanp` and the link.

use crate::client::Client;
use crate::{Failure, print, print_json};
use toe_abi::attach::ReportKind;
use toe_abi::report::{SocketReport, SocketsReport};

/// Show an engine's sockets
#[derive(Debug, clap::Args)]
#[command(after_help = "\
COLUMNS:
  Recv-Q   octets that the program has not read yet; for a listener, connections waiting to be accepted
  Send-Q   octets that the peer has not acknowledged yet; for a listener, its backlog
  Device   the port; 'local' when both ends are on this engine; '*' for a listener
  Process  who holds the socket; nobody, when the engine is only seeing its end through

EXAMPLES:
  toe ss
  toe ss --name web --json | jq '.sockets[] | select(.state == \"ESTAB\")'

Sockets on the kernel's stack are shown by ss(8).")]
pub struct Args {
    /// Name of the engine ('default' unless given)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn ss(args: &Args) -> Result<u8, Failure> {
    let mut report: SocketsReport = Client::find(args.name.as_deref())?.report(ReportKind::Sockets)?;
    if args.json {
        return print_json(&report);
    }
    // Listeners first, as a reader looks for them first.
    report
        .sockets
        .sort_by_key(|socket| (socket.state != "LISTEN", socket.local.clone(), socket.remote.clone()));
    print(&format(&report.sockets))
}

fn format(sockets: &[SocketReport]) -> String {
    let head = ["State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port", "Device", "Process"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(sockets.iter().map(|socket| {
        [
            socket.state.clone(),
            socket.recv_q.to_string(),
            socket.send_q.to_string(),
            socket.local.clone(),
            socket.remote.clone(),
            socket.device.clone(),
            users(socket),
        ]
    }));
    let widths: [usize; 7] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let cell =
                if matches!(column, 1 | 2) { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
            line += &cell;
            line += "  ";
        }
        out += line.trim_end();
        out += "\n";
    }
    out
}

fn users(socket: &SocketReport) -> String {
    if socket.users.is_empty() {
        return String::new();
    }
    let users: Vec<String> = socket
        .users
        .iter()
        .map(|user| format!("(\"{}\",pid={},fd={})", printable(&user.program), user.pid, user.fd))
        .collect();
    format!("users:({})", users.join(","))
}

/// A program can call itself anything; nothing of that may reach the terminal as a control sequence.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() || c == '"' { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_abi::report::UserReport;

    #[test]
    fn columns_line_up() {
        let user = |pid, fd| UserReport { program: "nginx".to_owned(), pid, fd };
        let sockets = [
            SocketReport {
                state: "LISTEN".to_owned(),
                local: "0.0.0.0:80".to_owned(),
                remote: "0.0.0.0:*".to_owned(),
                send_q: 511,
                users: vec![user(10, 6), user(11, 6)],
                device: "*".to_owned(),
                ..Default::default()
            },
            SocketReport {
                state: "ESTAB".to_owned(),
                local: "10.0.0.2:80".to_owned(),
                remote: "10.0.0.1:40404".to_owned(),
                recv_q: 123_456,
                users: vec![user(11, 14)],
                device: "packet:veth0".to_owned(),
                ..Default::default()
            },
            SocketReport { state: "TIME-WAIT".to_owned(), ..Default::default() },
        ];
        let text = format(&sockets);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        let column = lines[0].find("Local").expect("a column");
        assert!(lines[1][column..].starts_with("0.0.0.0:80 "), "{text}");
        assert!(lines[2][column..].starts_with("10.0.0.2:80 "), "{text}");
        assert!(lines[1].ends_with("users:((\"nginx\",pid=10,fd=6),(\"nginx\",pid=11,fd=6))"), "{text}");
        assert!(lines[2].contains("packet:veth0"), "{text}");
        assert_eq!(lines[3], lines[3].trim_end());
    }

    #[test]
    fn a_program_cannot_write_to_the_terminal() {
        let user = UserReport { program: "\x1b[31m\"x".to_owned(), pid: 1, fd: 1 };
        let text = users(&SocketReport { users: vec![user], ..Default::default() });
        assert_eq!(text, "users:((\"?[31m?x\",pid=1,fd=1))");
    }
}
