//! `toe capture`: what it writes of real connections, read back.

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use toe_tests::bins;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::nginx::{Nginx, Options, PORT};
use toe_tests::tools::On;
use toe_tests::wait::{self, SOON};

/// A capture that runs.
struct Capture {
    program: Program,
    file: PathBuf,
}

/// A packet as the file has it.
#[derive(Debug)]
struct Packet {
    interface: String,
    data: Vec<u8>,
    comments: Vec<String>,
}

impl Capture {
    fn start(lab: &Lab, engine: &Engine, args: &[&str]) -> Capture {
        let file = lab.dir().join("capture.pcapng");
        let mut command = lab.command(Side::Server, bins::path("toe"));
        command.args(["capture", "--name", engine.name(), "-w"]).arg(&file).args(args);
        let program = Program::spawn("capture", &mut command);
        // The first blocks are written once the engine has begun.
        wait::until_true("the capture begins", SOON, || fs::metadata(&file).is_ok_and(|file| file.len() > 0));
        Capture { program, file }
    }

    /// Ends it as Ctrl-C does; nothing may have been lost.
    fn end(self) -> Vec<Packet> {
        self.program.signal(Signal::INT);
        let said = self.program.wait(SOON).expect_success("toe capture");
        let packets = read(&self.file);
        assert_eq!(said.trim(), format!("toe: {} captured, 0 dropped by the buffer", packets.len()));
        readable_by_tcpdump(&self.file, packets.len());
        packets
    }
}

fn read(file: &Path) -> Vec<Packet> {
    let bytes = fs::read(file).expect("the capture's file");
    let mut reader = PcapNgReader::new(bytes.as_slice()).expect("a section");
    let (mut names, mut packets) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block.expect("well formed") {
            Block::InterfaceDescription(block) => names.extend(block.options.iter().find_map(|o| match o {
                InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                _ => None,
            })),
            Block::EnhancedPacket(packet) => packets.push(packet_of(&names, &packet)),
            other => panic!("no such block was written: {other:?}"),
        }
    }
    packets
}

fn packet_of(names: &[String], packet: &EnhancedPacketBlock<'_>) -> Packet {
    let comments = packet.options.iter().filter_map(|option| match option {
        EnhancedPacketOption::Comment(text) => Some(text.to_string()),
        _ => None,
    });
    Packet {
        interface: names[packet.interface_id as usize].clone(),
        data: packet.data.to_vec(),
        comments: comments.collect(),
    }
}

/// Another reader's opinion, where there is one: it counts the same packets and finds their checksums right.
fn readable_by_tcpdump(file: &Path, packets: usize) {
    let mut command = std::process::Command::new("tcpdump");
    let Ok(output) = command.args(["-n", "-v", "-r"]).arg(file).output() else {
        println!("no tcpdump here");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let count = text.lines().filter(|line| !line.starts_with([' ', '\t'])).count();
    assert_eq!(count, packets, "{text}");
    assert!(!text.contains("incorrect") && !text.contains("bad cksum"), "{text}");
}

fn holds(data: &[u8], text: &str) -> bool {
    data.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn a_fetch_over_local_is_seen_with_both_programs() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let port = PORT.to_string();
    let capture = Capture::start(&lab, &engine, &["--port", "local", "tcp", "port", &port]);
    let url = format!("http://127.0.0.1:{PORT}/small");
    assert!(On::Engine(&engine).bad_answers(&lab, &url, 1).is_empty());
    engine.wait_until_idle(SOON);
    let packets = capture.end();
    assert!(packets.iter().all(|packet| packet.interface == "local"), "{packets:?}");
    let request = packets.iter().find(|p| holds(&p.data, "GET /small")).expect("the request");
    let answer = packets.iter().find(|p| holds(&p.data, "200 OK")).expect("the answer");
    let is_worker =
        |text: &str| nginx.workers().iter().any(|pid| text.contains(&format!("nginx (pid {pid}, ")));
    let [there] = &request.comments[..] else { panic!("{request:?}") };
    let [back] = &answer.comments[..] else { panic!("{answer:?}") };
    let (curl, server) = there.split_once(" → ").expect("both ends");
    // It may have come before anybody had accepted the connection.
    let listens = server.starts_with("nginx (pid ") && server.ends_with(", listening)");
    assert!(curl.starts_with("curl (pid ") && (is_worker(server) || listens), "{there}");
    assert!(back.ends_with(&format!(" → {curl}")) && is_worker(back), "{back}");
    // Also what is left when curl has gone is said to be its own.
    assert!(
        packets.iter().all(|p| p.comments[0].contains("curl") && p.comments[0].contains("nginx")),
        "{packets:?}"
    );
}

#[test]
fn frames_of_a_link_are_seen_with_the_program_and_the_reason_of_a_drop() {
    let lab = Lab::new();
    let engine = Engine::on_tap(&lab);
    let nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let kernel = On::Kernel(Side::Server);
    let capture = Capture::start(&lab, &engine, &["tcp"]);
    let (_, sum) = lab.file("large", 4 << 20);
    let url = format!("http://{}:{PORT}/large", engine.addr());
    let (fetched, _) = kernel.fetched_sha256(&lab, &url, SOON);
    assert_eq!(fetched, sum);
    let refused = kernel.curl(&lab, &[&format!("http://{}:{}/", engine.addr(), PORT + 1)], SOON);
    assert!(!refused.status.success(), "nobody listens there");
    engine.wait_until_idle(SOON);
    let packets = capture.end();
    let device = engine.status().ports[0].name.clone();
    assert!(packets.iter().all(|packet| packet.interface == device), "{device}");
    let request = packets.iter().find(|p| holds(&p.data, "GET /large")).expect("the request");
    assert!(request.comments[0].starts_with("to nginx (pid "), "{request:?}");
    let is_answer = |text: &&String| text.starts_with("from nginx") && !text.contains("listening");
    let answers: Vec<_> = packets.iter().filter_map(|p| p.comments.first()).filter(is_answer).collect();
    let is_worker = |text: &String| nginx.workers().iter().any(|pid| text.contains(&format!("(pid {pid}, ")));
    assert!(!answers.is_empty() && answers.into_iter().all(is_worker));
    let bytes: usize = packets
        .iter()
        .filter(|p| p.comments.first().is_some_and(|text| text.starts_with("from nginx")))
        .map(|p| p.data.len())
        .sum();
    assert!(bytes > 4 << 20, "all that was sent is there: {bytes}");
    let dropped: Vec<_> =
        packets.iter().filter(|p| p.comments.iter().any(|c| c == "dropped: drop_no_flow")).collect();
    assert_eq!(dropped.len(), 1, "the SYN that nobody wanted: {dropped:?}");
}

#[test]
fn datagrams_of_a_link_are_seen() {
    let lab = Lab::new();
    let engine = Engine::on_tap(&lab);
    let mut server = On::Engine(&engine).command(&lab, "/usr/bin/python3");
    let script = "import socket\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        s.bind(('0.0.0.0', 5353))\n\
        print('ready', flush=True)\n\
        text, peer = s.recvfrom(100)\n\
        s.sendto(b'answer to ' + text, peer)\n";
    let mut server = Program::spawn("a server", server.args(["-c", script]));
    server.wait_for_line("ready", SOON);
    let capture = Capture::start(&lab, &engine, &["udp", "port", "5353"]);
    let mut client = lab.command(Side::Server, "/usr/bin/python3");
    let script = "import socket, sys\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        s.settimeout(60)\n\
        s.sendto(b'question', (sys.argv[1], 5353))\n\
        print(s.recv(100).decode())\n";
    let said = child::run("a client", client.args(["-c", script, engine.addr()]), SOON);
    assert_eq!(said.expect_success("a client").trim(), "answer to question");
    let packets = capture.end();
    let [question, answer] = &packets[..] else { panic!("{packets:?}") };
    assert!(holds(&question.data, "question") && holds(&answer.data, "answer to question"), "{packets:?}");
}

#[test]
fn a_connection_that_had_left_the_engine_comes_back_to_be_seen() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let on = On::Engine(&engine);
    let mut server = on.peer(&lab, "echo-server", &["7001"]);
    server.wait_for_line("listening", SOON);
    engine.wait_for_listener(7001);
    let mut client = on.peer(&lab, "talk", &["127.0.0.1", "7001"]);
    let mut said = 0;
    let mut ping = || {
        said += 1;
        client.tell(&format!("<{said}>"));
        client.wait_for_line(&format!("<{said}> ok"), SOON);
    };
    wait::until_true("it leaves the engine", SOON, || {
        ping();
        engine.status().counters.contains_key("direct_connections")
    });
    let capture = Capture::start(&lab, &engine, &["port", "7001"]);
    (0..20).for_each(|_| ping());
    let packets = capture.end();
    let seen = packets.iter().filter(|packet| holds(&packet.data, "ping")).count();
    // The first may have gone there before the connection came back.
    assert!((36..=40).contains(&seen), "there and back: {packets:?}");
    (0..20).for_each(|_| ping());
}

#[test]
fn a_capture_needs_a_filter_that_makes_sense_and_ends_by_itself() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let _nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let run = |args: &[&str]| {
        let mut command = lab.command(Side::Server, bins::path("toe"));
        command
            .args(["capture", "--name", engine.name(), "-w"])
            .arg(lab.dir().join("other.pcapng"))
            .args(args);
        command
    };
    let wrong = child::run("toe capture", &mut run(&["host", "nowhere"]), SOON);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(wrong.output.contains("'nowhere' where an address, such as 10.0.0.1"), "{}", wrong.output);
    let wrong = child::run("toe capture", &mut run(&["--port", "eth9"]), SOON);
    assert!(wrong.output.contains("no port 'eth9'; it has: local"), "{}", wrong.output);
    let capture = Capture::start(&lab, &engine, &["-c", "3", "-s", "60"]);
    let url = format!("http://127.0.0.1:{PORT}/small");
    assert!(On::Engine(&engine).bad_answers(&lab, &url, 1).is_empty());
    let said = capture.program.wait(SOON).expect_success("toe capture");
    assert_eq!(said.trim(), "toe: 3 captured, 0 dropped by the buffer");
    let packets = read(&capture.file);
    assert!(packets.len() == 3 && packets.iter().all(|packet| packet.data.len() <= 60));
}
