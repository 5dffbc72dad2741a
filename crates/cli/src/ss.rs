//! `toe ss`: the engine's sockets, in the columns of `ss -tuanp` and the link; with `-i` what `ss -i` tells of TCP, and counters of UDP.

use crate::client::Client;
use crate::presented::Presented;
use crate::{Failure, print, print_json};
use toe_abi::attach::ReportKind;
use toe_abi::report::{SocketReport, SocketsReport, TcpReport, UdpReport};

/// Show an engine's sockets
#[derive(Debug, clap::Args)]
#[command(after_help = "\
COLUMNS:
  Netid    tcp or udp; UDP sockets are those that hear from the engine's own links or have sent by them (the socket is the
           kernel's, and ss -u shows it, too)
  Recv-Q   bytes that the program has not read yet; for a listener, connections waiting to be accepted; of UDP 0 (ss -u)
  Send-Q   bytes that the peer has not acknowledged yet; for a listener, its backlog
  Device   the port; 'local' when both ends are on this engine; '*' for a listener or UDP. After '@' stands the network
           namespace, by the kernel's cookie, of what is of another than the engine's own
  Process  who holds the socket; nobody, when the engine is only seeing its end through; of UDP who has shown it (fd=-: the
           program does not say which descriptor it is)

With -i (times in ms, cwnd and ssthresh in segments, as ss has them; JSON has bytes and µs):
  ts sack ecn wscale   what both ends agreed on        cubic, ca_state   congestion control, and where it stands
  rto rtt minrtt       time-out, round trip/variation  delivery_rate     what the path was seen to deliver
  unacked sacked lost  bytes on their way, those that the peer has out of order, those taken for lost
  direct               bytes go past the engine, between two programs, and are not in bytes_…
  rx_by_kernel         of UDP: of the datagrams that came, those that went by the kernel's queue as the program did not look
  shared               of UDP: several processes have or had the socket, so that all goes by the kernel's queue

EXAMPLES:
  toe ss
  toe ss -ui
  toe ss --name web --json | jq '.sockets[] | select(.state == \"ESTAB\")'

Sockets on the kernel's stack are shown by ss(8).")]
pub struct Args {
    /// Name of the engine ('default' unless given)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Show TCP alone
    #[arg(short, long)]
    tcp: bool,
    /// Show UDP alone
    #[arg(short, long)]
    udp: bool,
    /// Show how each connection's TCP stands, in the words of ss -i, and what was counted of each UDP socket
    #[arg(short, long)]
    info: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn ss(args: &Args) -> Result<u8, Failure> {
    let mut report: SocketsReport = Client::find(args.name.as_deref())?.report(ReportKind::Sockets)?;
    // Both, or neither, is all.
    if args.tcp != args.udp {
        report.sockets.retain(|socket| socket.udp.is_some() == args.udp);
    }
    if args.json {
        return print_json(&report);
    }
    // Listeners first, as a reader looks for them first.
    report.sockets.sort_by_key(|socket| {
        (socket.udp.is_some(), socket.state != "LISTEN", socket.local.clone(), socket.remote.clone())
    });
    print(&format(&report.sockets, args.info))
}

fn format(sockets: &[SocketReport], info: bool) -> String {
    let head = [
        "Netid",
        "State",
        "Recv-Q",
        "Send-Q",
        "Local Address:Port",
        "Peer Address:Port",
        "Device",
        "Process",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(sockets.iter().map(|socket| {
        [
            if socket.udp.is_some() { "udp" } else { "tcp" }.to_owned(),
            socket.state.clone(),
            socket.recv_q.to_string(),
            socket.send_q.to_string(),
            socket.local.clone(),
            socket.remote.clone(),
            device(socket),
            users(socket),
        ]
    }));
    let widths: [usize; 8] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let mut out = String::new();
    for (at, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let cell =
                if matches!(column, 2 | 3) { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
            line += &cell;
            line += "  ";
        }
        out += line.trim_end();
        out += "\n";
        let socket = at.checked_sub(1).map(|at| &sockets[at]).filter(|_| info);
        if let Some(line) = socket.and_then(|socket| {
            let of_tcp = socket.tcp.as_ref().map(info_line);
            of_tcp.or_else(|| socket.udp.as_ref().map(udp_line))
        }) {
            out += "\t ";
            out += &line;
            out += "\n";
        }
    }
    out
}

/// The same for UDP, of which `ss -i` says nothing. Zeros are told, so that a line has all its words.
fn udp_line(udp: &UdpReport) -> String {
    let UdpReport {
        rx_datagrams,
        rx_bytes,
        rx_by_kernel,
        rx_drops,
        tx_datagrams,
        tx_bytes,
        tx_drops,
        shared,
    } = udp;
    let shared = if *shared { " shared" } else { "" };
    format!(
        "rx_datagrams:{rx_datagrams} rx_bytes:{rx_bytes} rx_by_kernel:{rx_by_kernel} rx_drops:{rx_drops} \
         tx_datagrams:{tx_datagrams} tx_bytes:{tx_bytes} tx_drops:{tx_drops}{shared}"
    )
}

/// `ss -i`'s line.
fn info_line(tcp: &TcpReport) -> String {
    let mut words: Vec<String> = Vec::new();
    let flags = [(tcp.timestamps, "ts"), (tcp.sack, "sack"), (tcp.ecn, "ecn"), (tcp.direct, "direct")];
    words.extend(flags.into_iter().filter(|(on, _)| *on).map(|(_, word)| word.to_owned()));
    words.push(tcp.congestion.clone());
    words.push(format!("ca_state:{}", tcp.ca_state));
    if let Some([snd, rcv]) = tcp.wscale {
        words.push(format!("wscale:{snd},{rcv}"));
    }
    let mut number = |name: &str, value: u64| {
        if value > 0 {
            words.push(format!("{name}:{value}"));
        }
    };
    let segments = |bytes: u32| u64::from(bytes / u32::from(tcp.mss).max(1));
    number("rto", u64::from(tcp.rto_us / 1000));
    number("backoff", tcp.backoff.into());
    number("mss", tcp.mss.into());
    number("pmtu", tcp.pmtu.into());
    number("cwnd", segments(tcp.cwnd));
    number("ssthresh", tcp.ssthresh.map_or(0, segments));
    number("bytes_sent", tcp.bytes_sent);
    number("bytes_retrans", tcp.bytes_retrans);
    number("bytes_acked", tcp.bytes_acked);
    number("bytes_received", tcp.bytes_received);
    number("segs_out", tcp.segs_out);
    number("segs_in", tcp.segs_in);
    number("unacked", tcp.unacked.into());
    number("sacked", tcp.sacked.into());
    number("lost", tcp.lost.into());
    number("retrans", tcp.retransmits.into());
    number("reord_seen", tcp.counts.reord_seen.into());
    number("reo_wnd_mult", if tcp.reordering_seen { tcp.reordering_window.into() } else { 0 });
    number("notsent", tcp.notsent.into());
    number("snd_wnd", tcp.snd_wnd.into());
    number("rcv_wnd", tcp.rcv_wnd.into());
    number("rcv_space", tcp.rcv_space.into());
    let counts = &tcp.counts;
    number("data_segs_out", counts.data_segs_out.into());
    number("data_segs_in", counts.data_segs_in.into());
    number("delivered", counts.delivered.into());
    number("delivered_ce", counts.delivered_ce.into());
    number("dsack_dups", counts.dsack_dups.into());
    number("rcv_ooopack", counts.rcv_ooopack.into());
    number("lastsnd", counts.lastsnd_ms.into());
    number("lastrcv", counts.lastrcv_ms.into());
    number("lastack", counts.lastack_ms.into());
    number("timeouts", counts.timeouts.into());
    for (name, us) in [("busy", counts.busy_us), ("rwnd_limited", counts.rwnd_limited_us)] {
        if us >= 1000 {
            words.push(format!("{name}:{}ms", us / 1000));
        }
    }
    if tcp.srtt_us > 0 {
        words.push(format!("rtt:{}/{}", milliseconds(tcp.srtt_us), milliseconds(tcp.rttvar_us)));
        words.push(format!("minrtt:{}", milliseconds(tcp.min_rtt_us)));
        let rate = u64::from(tcp.cwnd) * 1_000_000 / u64::from(tcp.srtt_us);
        words.push(format!("send {}", bits_a_second(rate)));
    }
    for (name, bytes_a_second) in [("pacing_rate", tcp.pacing_rate), ("delivery_rate", tcp.delivery_rate)] {
        if bytes_a_second > 0 {
            words.push(format!("{name} {}", bits_a_second(bytes_a_second)));
        }
    }
    if tcp.app_limited {
        words.push("app_limited".to_owned());
    }
    words.join(" ")
}

fn milliseconds(us: u32) -> String {
    let text = format!("{}.{:03}", us / 1000, us % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// As `ss` writes rates: `1.5Gbps`, `93500bps`.
fn bits_a_second(bytes_a_second: u64) -> String {
    let bits = bytes_a_second as f64 * 8.0;
    let (value, unit) = match bits {
        b if b >= 1e9 => (b / 1e9, "Gbps"),
        b if b >= 1e6 => (b / 1e6, "Mbps"),
        b if b >= 1e3 => (b / 1e3, "Kbps"),
        b => (b, "bps"),
    };
    let text = format!("{value:.1}");
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

fn device(socket: &SocketReport) -> String {
    match socket.netns {
        Some(netns) => format!("{}@{netns}", socket.device),
        None => socket.device.clone(),
    }
}

fn users(socket: &SocketReport) -> String {
    if socket.users.is_empty() {
        return String::new();
    }
    let users: Vec<String> = socket
        .users
        .iter()
        .map(|user| {
            // Accepted by nobody yet, or handed to a process that has not used it.
            let fd = if user.fd == u32::MAX { "-".to_owned() } else { user.fd.to_string() };
            format!("(\"{}\",pid={},fd={fd})", Presented(&user.program), user.pid)
        })
        .collect();
    format!("users:({})", users.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_abi::report::{TcpCounts, UserReport};

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
            SocketReport {
                state: "TIME-WAIT".to_owned(),
                device: "local".to_owned(),
                netns: Some(4711),
                ..Default::default()
            },
        ];
        let text = format(&sockets, false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        let column = lines[0].find("Local").expect("a column");
        assert!(lines[1][column..].starts_with("0.0.0.0:80 "), "{text}");
        assert!(lines[2][column..].starts_with("10.0.0.2:80 "), "{text}");
        assert!(lines[1].ends_with("users:((\"nginx\",pid=10,fd=6),(\"nginx\",pid=11,fd=6))"), "{text}");
        assert!(lines[2].contains("packet:veth0"), "{text}");
        assert_eq!(lines[3], lines[3].trim_end());
        assert!(lines[3].ends_with(" local@4711"), "{text}");
    }

    #[test]
    fn tcp_is_told_of_in_the_words_of_ss() {
        let tcp = TcpReport {
            congestion: "cubic".to_owned(),
            ca_state: "recovery".to_owned(),
            timestamps: true,
            sack: true,
            wscale: Some([7, 9]),
            rto_us: 204_900,
            srtt_us: 1_500,
            rttvar_us: 20,
            min_rtt_us: 1_000,
            mss: 1448,
            cwnd: 14_480,
            ssthresh: Some(14_480),
            lost: 1448,
            delivery_rate: 12_500_000,
            pacing_rate: 150_000_000,
            counts: TcpCounts { delivered: 7, lastrcv_ms: 12, busy_us: 3_999, ..TcpCounts::default() },
            ..TcpReport::default()
        };
        assert_eq!(
            info_line(&tcp),
            "ts sack cubic ca_state:recovery wscale:7,9 rto:204 mss:1448 cwnd:10 ssthresh:10 lost:1448 delivered:7 lastrcv:12 \
             busy:3ms rtt:1.5/0.02 minrtt:1 send 77.2Mbps pacing_rate 1.2Gbps delivery_rate 100Mbps"
        );
        let sockets = [SocketReport { tcp: Some(tcp), ..Default::default() }, SocketReport::default()];
        let lines = |info| format(&sockets, info).lines().count();
        assert_eq!((lines(false), lines(true)), (3, 4), "a line more for the one that is a connection");
    }

    #[test]
    fn udp_has_its_rows_and_counters() {
        let udp = UdpReport { rx_datagrams: 3, rx_drops: 1, shared: true, ..UdpReport::default() };
        let socket = SocketReport { state: "UNCONN".to_owned(), udp: Some(udp), ..Default::default() };
        let text = format(&[socket], true);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("udp    UNCONN"), "{text}");
        assert!(lines[2].contains("rx_datagrams:3 ") && lines[2].ends_with("tx_drops:0 shared"), "{text}");
    }

    #[test]
    fn a_program_cannot_write_to_the_terminal() {
        let user = UserReport { program: "\x1b[31m\"x".to_owned(), pid: 1, fd: 1 };
        let text = users(&SocketReport { users: vec![user], ..Default::default() });
        assert_eq!(text, "users:((\"\\u{1b}[31m\\\"x\",pid=1,fd=1))");
    }
}
