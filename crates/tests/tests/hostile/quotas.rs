//! One user takes as much as he gets; another comes later and still finds room.

use crate::scene::{CLIENT, Scene, listening};
use toe_tests::attacker::{ALICE, As, MALLORY};
use toe_tests::child::Program;
use toe_tests::lab::{ENGINE_ADDR, PEER_ADDR, Side};
use toe_tests::must;
use toe_tests::tools::On;
use toe_tests::wait::SOON;

/// An address in the client's namespace that is there and does not answer.
const SILENT: &str = "10.77.0.50";
/// Bytes of shared memory that an engine may be charged with beside two users' unread data.
const MEMORY_MAX: u64 = 700 << 20;
/// What one user may have of two things that cost the engine something and bring nobody anything.
const ANCHORS_MAX: u64 = 10_000;
const CONTROLS_MAX: u64 = 3000;

/// Makes [`SILENT`]: its neighbours find it, and nothing comes from it.
pub fn silent(scene: &Scene) {
    must(scene.lab.ip(Side::Client, &["addr", "add", &format!("{SILENT}/24"), "dev", "toe0"]));
    must(
        scene.lab.ip(
            Side::Client,
            &["rule", "add", "priority", "90", "from", SILENT, "ipproto", "tcp", "blackhole"],
        ),
    );
}

/// Another user attaches, connects and transfers.
#[track_caller]
pub fn newcomer(scene: &Scene, beside: &Program) {
    let _server = listening(CLIENT.peer(&scene.lab, "echo-many", &["9100"]));
    let at = format!("{PEER_ADDR}:9100");
    let mut newcomer = scene.attacks.begin(&scene.lab, As::User(ALICE), "reach", &[&at]);
    let held = beside.output();
    let (said, _) = toe_tests::wait::until("the newcomer's answer", SOON * 2, || {
        let output = newcomer.output();
        // A line that is still being written is none yet.
        let whole = output.rfind('\n').map_or("", |end| &output[..end]);
        let line = whole.lines().find(|line| line.contains("reached")).map(str::to_owned);
        line.or_else(|| (!newcomer.is_running()).then_some(output))
    });
    println!("{}; the newcomer: {}", held.trim(), said.trim());
    assert!(said.contains("reached ping"), "{held}\nthe newcomer: {said}");
}

fn leaves_room(attack: &[&str]) -> (Scene, Program) {
    leaves_room_of(&[], attack)
}

fn leaves_room_of(settings: &[&str], attack: &[&str]) -> (Scene, Program) {
    let mut scene = Scene::with(settings);
    silent(&scene);
    let attack = scene.attacks.begun(&scene.lab, As::User(MALLORY), attack, "hoarded");
    newcomer(&scene, &attack);
    scene.neighbour.goes_on(attack.output().trim());
    scene.engine_is_sound();
    (scene, attack)
}

#[test]
fn sessions() {
    leaves_room(&["sessions", "1200"]);
}

#[test]
fn connections_to_the_engine_without_a_session() {
    let (_scene, attack) = leaves_room(&["controls", "3000"]);
    assert!(number_after(&attack, "hoarded") < CONTROLS_MAX, "{}", attack.output());
}

#[test]
fn connections() {
    leaves_room(&["flows", "3", SILENT]);
}

/// An anchor is for a connection; one user does not get tens of thousands for none.
#[test]
fn anchors() {
    let (scene, attack) = leaves_room(&["anchors", "4"]);
    println!("{} KiB resident", resident(scene.engine.pid(), "VmRSS") >> 10);
    assert!(number_after(&attack, "hoarded") < ANCHORS_MAX, "{}", attack.output());
}

/// The memory that the engine is charged with stays below a bound, whatever is sent to programs that do not read.
#[test]
fn receive_memory() {
    let (scene, attack) = leaves_room_of(&["--quota", "memory_mib=512"], &["memory", "5", "250"]);
    let used = resident(scene.engine.pid(), "RssShmem");
    println!("{}: {} MiB of shared memory in the engine", attack.output().trim(), used >> 20);
    assert!(used < MEMORY_MAX, "{} MiB: {}", used >> 20, attack.output());
}

/// Rings that are full, and whose completions nobody takes, are memory of their user's: what the engine has of it is what it charges, and
/// another finds room.
#[test]
fn memory_of_rings() {
    let (scene, attack) = leaves_room(&["completions", "40"]);
    let used = resident(scene.engine.pid(), "RssShmem");
    let charged = ["session_memory", "receive_memory", "staging_memory"]
        .map(|kind| scene.engine.status().quotas.get(kind).map_or(0, |quota| quota.used));
    println!("{}: {} MiB; charged {charged:?}", attack.output().trim(), used >> 20);
    assert!(used > 20 << 20, "{used}: the rings are there");
    assert!(used <= charged.iter().sum(), "{used}: {charged:?}");
}

/// The memory of connections that nobody has taken is the engine's own, and everybody's: one user does not get it all.
#[test]
fn memory_of_connections_that_wait() {
    let (scene, attack) = leaves_room(&["memory", "3", "250", "staging"]);
    println!("{} MiB of shared memory", resident(scene.engine.pid(), "RssShmem") >> 20);
    let _victim = listening(On::Engine(&scene.engine).peer(&scene.lab, "shared-slow-server", &["7300"]));
    scene.engine.wait_for_listener(7300);
    let pushed = CLIENT.peer(&scene.lab, "push", &[ENGINE_ADDR, "7300", "8192"]).wait(SOON * 3);
    let said = pushed.expect_success("push");
    println!("of another user's 8192 bytes that wait: {}", said.trim());
    assert!(said.contains("left 0"), "{said}: {}", attack.output());
}

/// The number that follows a word of what an attack said.
fn number_after(attack: &Program, word: &str) -> u64 {
    let output = attack.output();
    let after = output.split_once(word).and_then(|(_, rest)| rest.split_whitespace().next());
    after.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("a number after {word}: {output}"))
}

/// A line of `/proc/PID/status` in bytes.
pub fn resident(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the engine's status");
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or_default() << 10
}
