//! Four users in four network namespaces and a stranger on the link do whatever comes to their minds, beside a transfer
//! and exchanges of root's: `TOE_STORM_SECONDS` of it (10 in `make test`, half an hour in `make storm`), from
//! `TOE_STORM_SEED`.

use crate::quotas::resident;
use crate::scene::{Scene, number};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use toe_tests::attacker::As;
use toe_tests::child::Program;
use toe_tests::lab::{ENGINE_ADDR, Side};
use toe_tests::tools::On;
use toe_tests::wait::{self, SOON};

const USERS: u32 = 4;
const FIRST_USER: u32 = 60_010;
const SECONDS_DEFAULT: u64 = 10;
/// Bytes of shared memory that the engine may be charged with: what the quotas of four users and of root leave them.
const MEMORY_MAX: u64 = 2 << 30;
/// Where the bulk transfer and the exchanges go.
const PORT: &str = "7200";

/// A client of `toe-load`, which checks each byte that comes back.
fn load(scene: &Scene, mode: &[&str], seconds: u64) -> Program {
    let mut command = scene.lab.command(Side::Client, scene.lab.program("toe-load"));
    let at = format!("{ENGINE_ADDR}:{PORT}");
    command.args(mode).args(["--connect", &at, "--seconds", &seconds.to_string()]);
    Program::spawn(mode[0], &mut command)
}

/// What both clients reached, in bytes and in exchanges a second.
fn rates(scene: &Scene, seconds: u64, look: &mut dyn FnMut()) -> (f64, f64) {
    let mut programs = vec![
        load(scene, &["stream", "--direction", "receive"], seconds),
        load(scene, &["stream", "--direction", "send"], seconds),
        load(scene, &["rr"], seconds),
    ];
    let limit = Duration::from_secs(seconds) + SOON * 4;
    wait::until_true("the transfers end", limit, || {
        look();
        programs.iter_mut().all(|program| !program.is_running())
    });
    let rate = |program: Program| {
        let output = program.wait(SOON).expect_success("toe-load");
        let report: serde_json::Value =
            serde_json::from_str(output.trim()).unwrap_or_else(|_| panic!("{output}"));
        report["rate"].as_f64().expect("a rate")
    };
    let mut rates = programs.into_iter().map(rate);
    let mut next = || rates.next().unwrap_or_default();
    (next() + next(), next())
}

#[test]
fn four_users_and_a_stranger() {
    let seconds = number("TOE_STORM_SECONDS").unwrap_or(SECONDS_DEFAULT);
    let clock =
        || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos().into());
    let seed = number("TOE_STORM_SEED").unwrap_or_else(clock);
    println!("TOE_STORM_SEED={seed} TOE_STORM_SECONDS={seconds}");
    let mut scene = Scene::new();
    let mut server =
        On::Engine(&scene.engine).command(&scene.lab, &scene.lab.program("toe-load").to_string_lossy());
    let mut server = Program::spawn("serve", server.args(["serve", "--listen", &format!("0.0.0.0:{PORT}")]));
    server.wait_for_line("ready", SOON);
    let quiet = rates(&scene, seconds.min(60) / 2 + 1, &mut || ());
    let mut attacks: Vec<Program> = (0..USERS)
        .map(|n| {
            // The first two see the engine's addresses, the others have networks of their own.
            let who = if n < 2 { As::User(FIRST_USER + n) } else { As::Contained(FIRST_USER + n) };
            let seed = (seed + u64::from(n)).to_string();
            scene.attacks.begun(&scene.lab, who, &["storm", &seed, "2"], "storming")
        })
        .collect();
    let stranger = ["wire-forged", "toe0", "10.77.0.66", &format!("{ENGINE_ADDR}:{PORT}"), &seed.to_string()]
        .map(str::to_owned);
    let words: Vec<&str> = stranger.iter().map(String::as_str).collect();
    attacks.push(scene.attacks.begun(&scene.lab, As::Root(Side::Client), &words, "flooding"));

    let (mut most, mut looked) = (0, Instant::now());
    let pid = scene.engine.pid();
    let stormy = rates(&scene, seconds, &mut || {
        if looked.elapsed() >= Duration::from_millis(200) {
            (most, looked) = (most.max(resident(pid, "RssShmem")), Instant::now());
        }
    });
    scene.neighbour.goes_on("a storm");
    println!(
        "quiet: {:.0} MB/s, {:.0} exchanges/s; in the storm: {:.0} MB/s ({:.0} %), {:.0} exchanges/s ({:.0} %); {} MiB of shared \
         memory at most",
        quiet.0 / 1e6,
        quiet.1,
        stormy.0 / 1e6,
        stormy.0 / quiet.0 * 100.0,
        stormy.1,
        stormy.1 / quiet.1 * 100.0,
        most >> 20
    );
    for attack in &mut attacks {
        attack.close_input();
        println!("{}", attack.output().lines().last().unwrap_or_default());
    }
    assert!(most < MEMORY_MAX, "{} MiB", most >> 20);
    scene.engine_is_sound();
    drop(attacks);
    scene.neighbour.goes_on("what the storm left");
    wait::until_true("the users' sessions are gone", SOON, || {
        scene.engine.status().sessions.iter().all(|session| session.uid == 0)
    });
}
