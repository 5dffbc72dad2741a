//! Between the engine and a kernel peer over a veth: small answers, and large files that must arrive unchanged.

use std::time::Duration;
use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side, TAP_ENGINE_ADDR};
use toe_tests::nginx::{Nginx, Options, PORT};
use toe_tests::tools::{On, WrkReport, rate};
use toe_tests::wait::SOON;

const LARGE: u64 = 64 << 20;
const TRANSFER_LIMIT: Duration = Duration::from_secs(90);
/// What the link does to frames in the tests with faults.
const FAULTS: &str = "?drop=1%&reorder=1%&seed=7";
const CLIENT: On<'static> = On::Kernel(Side::Client);

fn url(engine: &Engine, file: &str) -> String {
    format!("http://{}:{PORT}/{file}", engine.addr())
}

#[test]
fn nginx_answers_a_kernel_client() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let bad = CLIENT.bad_answers(&lab, &url(&engine, "small"), 100);
    assert_eq!(bad, Vec::<String>::new(), "all answers are 200");
    // curl closes each connection of its own accord; a new one each time works too.
    for _ in 0..10 {
        assert!(CLIENT.bad_answers(&lab, &url(&engine, "small"), 1).is_empty());
    }
    assert_eq!(nginx.errors(), "");
    println!("110 answers, all 200");
}

#[test]
fn wrk_on_the_kernel_sees_no_error() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let _nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let output = CLIENT.wrk(&lab, &url(&engine, "small"), 64, 2).wait(SOON).expect_success("wrk");
    let report = WrkReport::parse(&output);
    println!("{report:?}");
    assert!(report.requests > 0 && report.errors == 0, "{output}");
}

#[test]
fn nginx_sends_a_large_file_with_sendfile() {
    large_file_down("", Options { sendfile: true, ..Options::default() });
}

#[test]
fn nginx_sends_a_large_file_without_sendfile() {
    large_file_down("", Options { sendfile: false, ..Options::default() });
}

#[test]
fn nginx_sends_a_large_file_over_a_bad_link() {
    large_file_down(FAULTS, Options::default());
}

#[test]
fn a_program_receives_a_large_file() {
    large_file_up("");
}

#[test]
fn a_program_receives_a_large_file_over_a_bad_link() {
    large_file_up(FAULTS);
}

#[test]
fn two_engines_talk_over_a_bad_link() {
    let lab = Lab::new();
    let server = Engine::on_link(&lab, Side::Server, FAULTS);
    let client = Engine::on_link(&lab, Side::Client, FAULTS);
    let (_, sum) = lab.file("large", LARGE / 4);
    let _nginx = Nginx::on_engine(&lab, &server, Options::default());
    let (fetched, took) = On::Engine(&client).fetched_sha256(&lab, &url(&server, "large"), TRANSFER_LIMIT);
    assert_eq!(fetched, sum);
    println!("{} bytes down between two engines, {FAULTS}: {}", LARGE / 4, rate(LARGE / 4, took));
}

#[test]
fn large_files_cross_a_tap_both_ways() {
    let lab = Lab::new();
    let engine = Engine::on_tap(&lab);
    let kernel = On::Kernel(Side::Server);
    let (path, sum) = lab.file("large", LARGE);
    let _nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let (fetched, took) = kernel.fetched_sha256(&lab, &url(&engine, "large"), TRANSFER_LIMIT);
    assert_eq!(fetched, sum);
    println!("{LARGE} bytes down over a TAP: {}", rate(LARGE, took));
    let mut server = On::Engine(&engine).peer(&lab, "put-server", &["8081"]);
    server.wait_for_line("listening", SOON);
    engine.wait_for_listener(8081);
    let start = std::time::Instant::now();
    let up = format!("http://{}:8081/up", engine.addr());
    let answer = kernel.curl(&lab, &["-f", "-T", &path.to_string_lossy(), &up], TRANSFER_LIMIT);
    assert_eq!(answer.expect_success("curl -T").trim(), sum);
    println!("{LARGE} bytes up over a TAP: {}", rate(LARGE, start.elapsed()));
}

fn large_file_down(faults: &str, options: Options) {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, faults);
    let (_, sum) = lab.file("large", LARGE);
    let _nginx = Nginx::on_engine(&lab, &engine, options);
    let (fetched, took) = CLIENT.fetched_sha256(&lab, &url(&engine, "large"), TRANSFER_LIMIT);
    assert_eq!(fetched, sum);
    println!("{LARGE} bytes down, sendfile {}, faults {faults:?}: {}", options.sendfile, rate(LARGE, took));
    assert_faults_happened(&engine, faults);
}

fn large_file_up(faults: &str) {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, faults);
    let (path, sum) = lab.file("large", LARGE);
    let mut server = On::Engine(&engine).peer(&lab, "put-server", &["8080"]);
    server.wait_for_line("listening", SOON);
    engine.wait_for_listener(8080);
    let start = std::time::Instant::now();
    let args = ["-f", "-T", &path.to_string_lossy(), &url(&engine, "up")];
    let answer = CLIENT.curl(&lab, &args, TRANSFER_LIMIT).expect_success("curl -T");
    assert_eq!(answer.trim(), sum);
    println!("{LARGE} bytes up, faults {faults:?}: {}", rate(LARGE, start.elapsed()));
    assert_faults_happened(&engine, faults);
}

/// A test of a bad link proves nothing when the link was good.
fn assert_faults_happened(engine: &Engine, faults: &str) {
    let counters = engine.status().counters;
    let dropped: u64 = counters.iter().filter(|(name, _)| name.contains("fault")).map(|(_, n)| n).sum();
    println!("frames that the fault wrapper touched: {dropped}");
    assert_eq!(dropped > 0, !faults.is_empty(), "{counters:?}");
}

#[test]
fn a_frame_that_linux_cannot_describe_stops_a_port_for_a_second_only() {
    let lab = Lab::new();
    let script = lab.dir().join("stuck_ring.py");
    std::fs::write(&script, include_str!("stuck_ring.py")).expect("stuck_ring.py");
    let mut command = lab.command(Side::Server, "/usr/bin/python3");
    command.arg(&script).arg(TAP_ENGINE_ADDR);
    let mut peer = Program::spawn("stuck_ring", &mut command);
    peer.wait_for_line("up", SOON);
    let engine = Engine::on_interface(&lab, "toestuck");
    peer.tell("go");
    assert!(peer.wait(SOON).expect_success("stuck_ring").trim().ends_with("same"));
    println!("{:?}", engine.status().counters);
    assert_eq!(engine.status().counters["port0_rx_restarts"], 1);
}
