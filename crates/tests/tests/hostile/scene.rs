//! What is attacked: an engine that everybody may reach, and a neighbour whose programs use it.

use std::time::Duration;
use toe_tests::attacker::Attacks;
use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::{ENGINE_ADDR, Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

pub const CLIENT: On<'static> = On::Kernel(Side::Client);
/// The kernel beside the engine.
pub const BESIDE: On<'static> = On::Kernel(Side::Server);
/// Exchanges that a neighbour must get done beside an attack, in each of two ways.
const EXCHANGES: u32 = 200;
/// A limit for a test that fails: undisturbed it takes some tens of milliseconds.
const LIMIT: Duration = Duration::from_secs(40);
pub const PORT: &str = "7000";

/// An engine on a link and inside, for all users.
pub fn engine(lab: &Lab) -> Engine {
    engine_with(lab, &[])
}

/// The same with more that `toe start` is given.
pub fn engine_with(lab: &Lab, settings: &[&str]) -> Engine {
    let everybody = ["--port", "local"].into_iter().chain(everybody(lab).iter().copied());
    let settings: Vec<&str> = everybody.chain(settings.iter().copied()).collect();
    Engine::on_link_with(lab, &settings)
}

/// What lets everybody attach.
pub fn everybody(lab: &Lab) -> &'static [&'static str] {
    let help = std::process::Command::new(lab.program("toe")).args(["start", "--help"]).output();
    let knows = help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--allow-all"));
    if knows { &["--allow-all"] } else { &[] }
}

/// A number that an environment variable gives.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value}: a number")))
}

/// A program that listens, once it does.
pub fn listening(mut program: Program) -> Program {
    program.wait_for_line("listening", SOON);
    program
}

/// Root's server on the engine with two clients: one over the link, on the kernel's stack, and one inside the engine.
#[derive(Debug)]
pub struct Neighbour {
    clients: Vec<Program>,
    _server: Program,
    words: u32,
}

impl Neighbour {
    pub fn of(lab: &Lab, engine: &Engine) -> Neighbour {
        let server = listening(On::Engine(engine).peer(lab, "echo-many", &[PORT]));
        engine.wait_for_listener(7000);
        let clients = vec![
            CLIENT.peer(lab, "exchanges", &[ENGINE_ADDR, PORT]),
            On::Engine(engine).peer(lab, "exchanges", &["127.0.0.1", PORT]),
        ];
        let mut neighbour = Neighbour { clients, _server: server, words: 0 };
        for client in &mut neighbour.clients {
            client.wait_for_line("connected", SOON);
        }
        neighbour.goes_on("undisturbed");
        neighbour
    }

    /// Both clients get all their exchanges done.
    #[track_caller]
    pub fn goes_on(&mut self, beside: &str) {
        self.words += 1;
        let word = format!("round-{}", self.words);
        for client in &mut self.clients {
            client.tell(&format!("{word} {EXCHANGES}"));
        }
        for client in &mut self.clients {
            let said = client.wait_for_line(&format!("in {word}."), LIMIT);
            assert!(said.contains(&format!("right {EXCHANGES} ")), "beside {beside}: {said}");
            println!("{beside}: {said}");
        }
    }
}

/// The attackers' files and the engine that they attack, with its neighbour.
pub struct Scene {
    pub attacks: Attacks,
    pub neighbour: Neighbour,
    pub engine: Engine,
    pub lab: Lab,
}

impl Scene {
    pub fn new() -> Scene {
        Scene::with(&[])
    }

    pub fn with(settings: &[&str]) -> Scene {
        let lab = Lab::new();
        let engine = engine_with(&lab, settings);
        let neighbour = Neighbour::of(&lab, &engine);
        Scene { attacks: Attacks::on(&lab, &engine), neighbour, engine, lab }
    }

    /// Nothing that was attempted made the engine say that it is broken.
    #[track_caller]
    pub fn engine_is_sound(&self) {
        let log = self.engine.log();
        assert!(!log.contains("panicked"), "{log}");
        assert_eq!(self.engine.status().pid, self.engine.pid());
    }
}
