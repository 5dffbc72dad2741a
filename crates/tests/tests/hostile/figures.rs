//! A neighbour's latencies undisturbed and under each attack at full force, as a table and JSON:
//! `scripts/hostile-figures.sh`.

use crate::floods;
use crate::quotas::silent;
use crate::scene::{Scene, number};
use std::time::Duration;
use toe_tests::attacker::{As, MALLORY};
use toe_tests::child::Program;
use toe_tests::lab::{ENGINE_ADDR, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

const PORT: &str = "7200";
/// Times that the neighbour's p99 may grow under an attack.
const GROWTH_MAX: f64 = 2.0;

#[derive(Debug, serde::Serialize)]
struct Row {
    attack: String,
    p50_us: f64,
    p99_us: f64,
    /// Exchanges a second.
    rate: f64,
    /// p99 beside the undisturbed one of the same scene.
    growth: f64,
    /// What the attack said last: how much it got done.
    attacker: String,
}

/// p50, p99 and rate of exchanges over a held connection; `None` if they came to no end.
fn exchanges(scene: &Scene, seconds: u64) -> Option<(f64, f64, f64)> {
    let mut command = scene.lab.command(Side::Client, scene.lab.program("toe-load"));
    command.args(["rr", "--connect", &format!("{ENGINE_ADDR}:{PORT}"), "--seconds", &seconds.to_string()]);
    let mut program = Program::spawn("rr", &mut command);
    let limit = Duration::from_secs(seconds) + SOON * 2;
    let ended = std::time::Instant::now();
    while program.is_running() && ended.elapsed() < limit {
        std::thread::park_timeout(Duration::from_millis(50));
    }
    if program.is_running() {
        return None;
    }
    let report: serde_json::Value = serde_json::from_str(program.wait(SOON).output.trim()).ok()?;
    let latency = &report["latency_us"];
    Some((latency["p50"].as_f64()?, latency["p99"].as_f64()?, report["rate"].as_f64()?))
}

/// The attacks of floods and hoards by name, after programs that only take cores: one, two as of those whose
/// requests a thread of their own answers, and as many as `opens` has.
fn attacks() -> Vec<Vec<String>> {
    let hoards: [&[&str]; 5] = [
        &["sessions", "1200"],
        &["controls", "3000"],
        &["flows", "3", "10.77.0.50"],
        &["anchors", "4"],
        &["memory", "5", "250"],
    ];
    let hoards = hoards.into_iter().map(|words| words.iter().map(|&word| word.to_owned()).collect());
    let floods =
        floods::all().into_iter().map(|(name, args)| std::iter::once(name.to_owned()).chain(args).collect());
    let spin = |count: &str| vec!["spin".to_owned(), count.to_owned()];
    [spin("1"), spin("2"), spin("4")].into_iter().chain(floods).chain(hoards).collect()
}

fn measure(words: &[String], seconds: u64) -> [Row; 2] {
    let scene = Scene::new();
    silent(&scene);
    let mut server =
        On::Engine(&scene.engine).command(&scene.lab, &scene.lab.program("toe-load").to_string_lossy());
    let mut server = Program::spawn("serve", server.args(["serve", "--listen", &format!("0.0.0.0:{PORT}")]));
    server.wait_for_line("ready", SOON);
    let (p50, p99, rate) = exchanges(&scene, (seconds / 4).max(2)).expect("undisturbed exchanges");
    let quiet = Row {
        attack: "none".to_owned(),
        p50_us: p50,
        p99_us: p99,
        rate,
        growth: 1.0,
        attacker: String::new(),
    };
    let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    let mut attacker = scene.attacks.begin(&scene.lab, As::User(MALLORY), &words[0], &args);
    let hoards = ["sessions", "controls", "flows", "anchors", "memory"].contains(&words[0].as_str());
    if !hoards {
        // Floods that need much first, such as connections, are not at full force before they say so.
        attacker.wait_for_line("rounds", SOON * 6);
    }
    let (p50_us, p99_us, rate) = exchanges(&scene, seconds).unwrap_or((f64::INFINITY, f64::INFINITY, 0.0));
    let said = attacker.output().lines().last().unwrap_or_default().to_owned();
    let attack = if words[0] == "spin" { words.join("-") } else { words[0].clone() };
    [quiet, Row { attack, p50_us, p99_us, rate, growth: p99_us / p99, attacker: said }]
}

/// `TOE_HOSTILE_SECONDS` of each attack, those whose names `TOE_HOSTILE_ONLY` lists or all; JSON goes to `TOE_HOSTILE_JSON`.
/// Nothing is measured unless it is said for how long.
#[test]
fn figures() {
    let Some(seconds) = number("TOE_HOSTILE_SECONDS") else { return };
    let only = std::env::var("TOE_HOSTILE_ONLY").unwrap_or_default();
    println!("{:<18} {:>10} {:>10} {:>10} {:>7}  attacker", "attack", "p50 us", "p99 us", "per s", "growth");
    let mut rows = Vec::new();
    for words in attacks() {
        if !only.is_empty() && !only.split(',').any(|name| name == words[0]) {
            continue;
        }
        for row in measure(&words, seconds) {
            println!(
                "{:<18} {:>10.1} {:>10.1} {:>10.0} {:>7.2}  {}",
                row.attack, row.p50_us, row.p99_us, row.rate, row.growth, row.attacker
            );
            rows.push(row);
        }
    }
    if let Some(path) = std::env::var_os("TOE_HOSTILE_JSON") {
        let json = serde_json::to_string_pretty(&rows).expect("JSON");
        std::fs::write(path, json).expect("the file for JSON");
    }
    let beyond: Vec<&Row> = rows.iter().filter(|row| row.growth > GROWTH_MAX).collect();
    println!("{} of {} beyond {GROWTH_MAX} times the undisturbed p99", beyond.len(), rows.len() / 2);
}
