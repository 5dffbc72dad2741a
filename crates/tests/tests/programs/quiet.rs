//! What is left for the kernel: on a connection that is up and busy, no call at all.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::Duration;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::Lab;
use toe_tests::tools::On;
use toe_tests::wait::{self, SOON};

const PORT: &str = "7501";
const REQUESTS: usize = 20_000;
const CLIENTS: usize = 20;
/// Calls that set a connection up or end it, whatever is sent over it: flags, options, close.
const CALLS_OF_A_LIFE: usize = 8;

/// The calls that strace saw.
#[derive(Debug, Default)]
struct Trace {
    all: usize,
    connections: usize,
    /// Those that name a connection, by name.
    on_connections: BTreeMap<String, usize>,
}

impl Trace {
    /// A connection begins when its anchor is opened: a numbered directory in the one that the engine gave.
    fn read(file: &Path) -> Trace {
        let text = std::fs::read_to_string(file).expect("what strace wrote");
        let mut trace = Trace::default();
        let mut open = HashSet::new();
        for line in text.lines() {
            // "PID name(arguments) = result"
            let call = line.split_once(char::is_whitespace).map_or("", |(_, call)| call.trim_start());
            let Some((name, arguments)) = call.split_once('(') else { continue };
            if !name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_') {
                continue;
            }
            trace.all += 1;
            let end = arguments.find([',', ')', ' ']).unwrap_or(arguments.len());
            let first: Option<i32> = arguments[..end].parse().ok();
            let result: Option<i32> =
                call.rsplit_once(" = ").and_then(|(_, result)| result.trim().parse().ok());
            if name == "openat" && first.is_some() && arguments.contains("O_DIRECTORY") {
                trace.connections += 1;
                open.extend(result);
            } else if let Some(fd) = first.filter(|fd| open.contains(fd)) {
                *trace.on_connections.entry(name.to_owned()).or_default() += 1;
                if name == "close" {
                    open.remove(&fd);
                }
            }
        }
        trace
    }
}

#[test]
fn a_trace_is_read() {
    let lab = Lab::new();
    let file = lab.dir().join("trace");
    let text = "10 openat(15004, \"18\", O_RDONLY|O_DIRECTORY) = 26\n10 write(26, \"a\", 1) = 1\n\
                11 <... ppoll resumed>) = 1\n10 close(26) = 0\n10 write(26, \"b\", 1) = 1\n10 openat(AT_FDCWD, \"/\", \
                O_DIRECTORY) = 3\n10 read(3, \"\", 1) = 0\n";
    std::fs::write(&file, text).expect("a file");
    let trace = Trace::read(&file);
    assert_eq!((trace.all, trace.connections), (6, 1));
    assert_eq!(trace.on_connections, [("close".to_owned(), 1), ("write".to_owned(), 1)].into());
}

#[test]
fn a_busy_connection_makes_no_system_call() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join("trace");
    let mut command = On::Engine(&engine).command(&lab, "strace");
    command.args(["-f", "-qq", "-o"]).arg(&file);
    command.args(["redis-server", "--port", PORT, "--save", "", "--appendonly", "no", "--daemonize", "no"]);
    command.current_dir(lab.dir());
    let server = Program::spawn("redis-server under strace", &mut command);
    engine.wait_for_listener(PORT.parse().expect("a port"));
    let mut command = On::Engine(&engine).command(&lab, "redis-benchmark");
    command.args(["-p", PORT, "-t", "get", "-q", "-n", &REQUESTS.to_string(), "-c", &CLIENTS.to_string()]);
    let said =
        child::run("redis-benchmark", &mut command, Duration::from_secs(60)).expect_success("benchmark");
    let mut command = On::Engine(&engine).command(&lab, "redis-cli");
    let _ = child::run("redis-cli", command.args(["-p", PORT, "shutdown", "nosave"]), SOON);
    server.wait(SOON).expect_success("redis-server");
    wait::until_true("strace has written all", SOON, || file.exists());
    let trace = Trace::read(&file);
    let per_request = trace.all as f64 / REQUESTS as f64;
    println!("{}\n{trace:?}\n{per_request:.2} calls a request, all counted", said.trim());
    assert!(trace.connections >= CLIENTS, "they were the engine's");
    let on_connections: usize = trace.on_connections.values().sum();
    assert!(on_connections <= CALLS_OF_A_LIFE * trace.connections, "{trace:?}");
}
