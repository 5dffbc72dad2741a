//! Files that no disk at hand has: slow ones, and such as read short, fail in the middle or take a part (`odd_disk.c`, by FUSE).

use crate::files::{built, native};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

/// Of each file: a whole number of pages in each half.
const SIZE: u64 = 1 << 20;
/// Of one that nobody comes to the end of.
const ENDLESS: u64 = 1 << 40;
const LIMIT: Duration = Duration::from_secs(60);
const PORT: &str = "7100";

/// A program that needs the C library alone.
fn plain(lab: &Lab, name: &str) -> PathBuf {
    let (source, bin) =
        (toe_tests::bins::workspace().join(format!("crates/tests/programs/{name}.c")), lab.dir().join(name));
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O2", "-pthread", "-o"]).arg(&bin).arg(&source);
    child::run("cc", &mut cc, SOON).expect_success("cc");
    bin
}

/// A mounted disk; unmounted when this is dropped.
struct Disk {
    folder: PathBuf,
    _program: Program,
}

impl Disk {
    fn new(lab: &Lab, size: u64, delay: Duration) -> Disk {
        let folder = lab.dir().join("disk");
        std::fs::create_dir(&folder).expect("a folder in the lab");
        let mut command = Command::new(plain(lab, "odd_disk"));
        command.arg(&folder).args([size.to_string(), delay.as_micros().to_string()]);
        let mut program = Program::spawn("odd_disk", &mut command);
        program.wait_for_line("mounted", SOON);
        Disk { folder, _program: program }
    }

    fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Whoever still reads from it is told that it is gone.
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}

#[test]
fn a_file_that_fails_is_told_with_what_went_and_nothing_is_lost() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let disk = Disk::new(&lab, SIZE, Duration::ZERO);
    let mut command = native(&lab, &engine, &built(&lab, "odd_files"));
    command.arg(PORT).arg(disk.folder()).arg(SIZE.to_string());
    let said = child::run("odd_files", &mut command, LIMIT).expect_success("odd_files");
    assert!(said.ends_with("all\n"), "{said}");
    print!("{said}");
}

/// A block device whose bytes lie in a file; gone when this is dropped.
struct Loop(String);

impl Loop {
    /// `None`: this kernel has none.
    fn new(lab: &Lab) -> Option<Loop> {
        let file = lab.dir().join("device");
        std::fs::File::create(&file).and_then(|file| file.set_len(SIZE)).expect("a file in the lab");
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().ok()?;
        let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(Loop(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn block_devices_and_pipes_are_files_too() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let device = Loop::new(&lab);
    let mut command = native(&lab, &engine, &built(&lab, "devices"));
    command.args([PORT, device.as_ref().map_or("-", |device| &device.0)]);
    let said = child::run("devices", &mut command, LIMIT).expect_success("devices");
    assert!(said.ends_with("all\n"), "{said}");
    print!("{said}");
}

#[test]
fn sendfile_and_splice_end_where_the_file_fails_as_on_the_kernel() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let bin = plain(&lab, "odd_sendfile");
    let said = [lab.command(Side::Server, &bin), engine.run(&lab, &bin.display().to_string())];
    let disk = Disk::new(&lab, SIZE, Duration::ZERO);
    let [linux, toe] = said.map(|mut command| {
        command.arg(PORT).arg(disk.folder()).arg(SIZE.to_string());
        child::run("odd_sendfile", &mut command, LIMIT).expect_success("odd_sendfile")
    });
    assert!(linux.ends_with("all\n"), "{linux}");
    assert_eq!(toe, linux);
}

/// fork() waits for no disk, and no copy of a file's descriptor is left in the child.
#[test]
fn a_child_runs_although_a_disk_does_not_answer() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let bin = plain(&lab, "stuck_fork");
    let disk = Disk::new(&lab, SIZE, Duration::ZERO);
    let file = disk.folder().join("stuck");
    let said = [lab.command(Side::Server, &bin), engine.run(&lab, &bin.display().to_string())];
    let [linux, toe] = said.map(|mut command| {
        child::run("stuck_fork", command.arg(PORT).arg(&file), LIMIT).expect_success("stuck_fork")
    });
    assert!(linux.ends_with("all\n"), "{linux}");
    assert_eq!(toe, linux);
}

/// Who is measured: two programs on one stack, and many transfers on the same one beside them.
struct Neighbours<'a> {
    name: &'static str,
    on: On<'a>,
    /// Where the two meet.
    at: String,
    /// The program of the transfers, and its port.
    transfers: (PathBuf, &'static str),
    _server: Program,
}

/// Of requests of 64 bytes and their replies: median, 99th part and rate.
type Exchanges = (f64, f64, f64);

impl<'a> Neighbours<'a> {
    fn new(
        name: &'static str,
        lab: &Lab,
        on: On<'a>,
        at: String,
        transfers: (PathBuf, &'static str),
    ) -> Neighbours<'a> {
        let mut server = on.command(lab, &lab.program("toe-load").to_string_lossy());
        let mut server = Program::spawn("serve", server.args(["serve", "--listen", &at]));
        server.wait_for_line("ready", SOON);
        Neighbours { name, on, at, transfers, _server: server }
    }

    fn exchanges(&self, lab: &Lab, seconds: u32) -> Exchanges {
        let mut command = self.on.command(lab, &lab.program("toe-load").to_string_lossy());
        command.args(["rr", "--connect", &self.at, "--warmup", "1", "--seconds", &seconds.to_string()]);
        let said = child::run("rr", &mut command, SOON + Duration::from_secs(u64::from(seconds)) * 2);
        let said = said.expect_success("rr");
        let report: serde_json::Value = serde_json::from_str(said.trim()).expect("toe-load's report");
        let of = |value: &serde_json::Value| value.as_f64().expect("a number");
        let latency = &report["latency_us"];
        (of(&latency["p50"]), of(&latency["p99"]), of(&report["rate"]))
    }

    /// Without the transfers and with them; what came of it, as a line.
    fn round(&self, lab: &Lab, disk: &Disk, count: u32, seconds: u32) -> String {
        let (p50, p99, rate) = self.exchanges(lab, seconds);
        let (bin, port) = &self.transfers;
        let mut command = match self.on {
            On::Engine(engine) => native(lab, engine, bin),
            On::Kernel(side) => lab.command(side, bin),
        };
        command.arg(port).arg(disk.folder().join("plain")).arg(count.to_string());
        let mut transfers = Program::spawn("transfers", &mut command);
        transfers.wait_for_line("under way", LIMIT);
        let (p50_beside, p99_beside, rate_beside) = self.exchanges(lab, seconds);
        transfers.close_input();
        let said = transfers.wait(LIMIT).expect_success("transfers");
        format!(
            "{}: p50 {p50:.2} -> {p50_beside:.2} us ({:+.1} %), p99 {p99:.2} -> {p99_beside:.2} us ({:+.1} %), \
             {rate:.0} -> {rate_beside:.0}/s; {}",
            self.name,
            (p50_beside / p50 - 1.0) * 100.0,
            (p99_beside / p99 - 1.0) * 100.0,
            said.lines().last().unwrap_or_default()
        )
    }
}

/// Many transfers at once from a file whose reads take 2 ms each, one after another, beside requests and replies of two other programs.
/// What these take is printed, without and with the transfers, and the same of Linux's stack with as many sendfile() calls, turn and turn
/// about: `scripts/slow-disk.sh` for figures.
#[test]
fn a_slow_disk_holds_up_nobody() {
    let of = |name: &str, usual: u32| {
        std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok()).unwrap_or(usual)
    };
    let (count, rounds, seconds) =
        (of("TOE_SLOW_TRANSFERS", 100), of("TOE_SLOW_ROUNDS", 1), of("TOE_SLOW_SECONDS", 1));
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let disk = Disk::new(&lab, ENDLESS, Duration::from_millis(2));
    let on_engine = (built(&lab, "many_transfers"), PORT);
    let on_kernel = (plain(&lab, "many_sendfiles"), "7101");
    let at = format!("{}:7200", engine.addr());
    let both = [
        Neighbours::new("OpenTOE", &lab, On::Engine(&engine), at, on_engine),
        Neighbours::new("Linux", &lab, On::Kernel(Side::Server), "127.0.0.1:7201".to_owned(), on_kernel),
    ];
    println!("{count} transfers; each round of either stack {seconds} s without and {seconds} s with them:");
    for round in 1..=rounds {
        for neighbours in &both {
            println!("round {round}, {}", neighbours.round(&lab, &disk, count, seconds));
        }
    }
}
