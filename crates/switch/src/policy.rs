//! The policy that `toe run` gave this program (`toe_abi::policy`), and in which order it lets the stacks be tried: by
//! priority, and among engines of the same priority balanced. Asked by `connect.rs` and `listen.rs`.

use crate::proto_stacks::{ProtoStacks, fold};
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::path::Arg;
use std::sync::OnceLock;
use toe::stack::{ENGINES_MAX, EngineIdx, Stack};
use toe::sys;
pub use toe_abi::policy::{Action, Call, Decision, Engines};
use toe_abi::policy::{Balance, POLICY_VARIABLE, Policy};
use toe_base::Endpoint;

/// What an engine says of its load is believed for so long; one that is silent sleeps.
const LOAD_HOLDS_MS: u32 = 1000;
/// Engines that are busy are told apart by tenths of their time: less is noise.
const BUSY_STEP_PERMILLE: u32 = 100;

/// What does not change while the program runs.
#[derive(Debug, Default)]
struct Given {
    policy: Policy,
    /// The program's file name.
    program: String,
    /// TOE_DISABLE: every socket stays on the kernel's stack.
    disabled: bool,
    /// TOE_ENGINE: the program runs under `toe run`.
    has_engine: bool,
}

static GIVEN: OnceLock<Given> = OnceLock::new();

/// Called once, when the library is loaded: programs change their environment later.
pub fn load() {
    let text = toe::environment::var(POLICY_VARIABLE).unwrap_or_default();
    // `toe run` has read it once, so it was altered since: what it forbade is not known.
    let policy = text.parse().unwrap_or_else(|error| {
        crate::debug::log(format_args!("{POLICY_VARIABLE}: {error}; everything is refused"));
        Policy { otherwise: Action::Refuse, ..Policy::default() }
    });
    let is_set = |name| toe::environment::var_os(name).is_some();
    let (disabled, has_engine) = (is_set("TOE_DISABLE"), is_set("TOE_ENGINE"));
    let _ = GIVEN.set(Given { policy, program: program_name(), disabled, has_engine });
}

/// As the program was started: of a program of many names (busybox) the one that was used.
fn program_name() -> String {
    let started_as = std::env::args_os().next().filter(|name| !name.is_empty());
    let path = started_as.or_else(|| {
        let exe = rustix::fs::readlink("/proc/self/exe", Vec::new()).ok()?;
        Some(exe.to_string_lossy().into_owned().into())
    });
    let path = path.unwrap_or_default();
    std::path::Path::new(&path).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn given() -> &'static Given {
    GIVEN.get_or_init(Given::default)
}

/// Whether every socket stays on the kernel's stack.
pub fn disabled() -> bool {
    given().disabled
}

/// Whether the program was given an engine that it may use, attached or not.
pub fn may_have_engine() -> bool {
    given().has_engine && !disabled()
}

/// Of a socket that no policy speaks of.
pub const NOT_SUBJECT: Decision = Decision { action: Action::Offload, engines: Engines::ALL, rule: 0 };

/// `addr`: where the socket is to listen, or what it is to connect to.
pub fn decide(call: Call, addr: Endpoint) -> Decision {
    let given = given();
    given.policy.decide(&given.program, call, addr)
}

/// The stacks that a decision leaves, in the order in which they are to be tried for `addr`.
pub fn stacks(decision: Decision, addr: Endpoint) -> ProtoStacks {
    let kernel = matches!(decision.action, Action::Offload | Action::Kernel);
    let mut stacks = ProtoStacks::new(kernel);
    if disabled() || matches!(decision.action, Action::Kernel | Action::Refuse) {
        return stacks;
    }
    let policy = &given().policy;
    if policy.priorities.is_empty() {
        EngineIdx::all().filter(|engine| decision.engines.has(engine.index())).for_each(|e| stacks.push(e));
        return stacks;
    }
    for &priority in &policy.priorities {
        let mut engines = [EngineIdx::FIRST; ENGINES_MAX];
        let mut count = 0;
        for engine in priority.and(decision.engines).iter().filter_map(EngineIdx::new) {
            engines[count] = engine;
            count += 1;
        }
        let engines = &mut engines[..count];
        match policy.balance {
            Balance::Hash if count > 1 => engines.rotate_left(hash(addr) % count),
            Balance::LeastLoaded if count > 1 => engines.sort_by_cached_key(|engine| load_of(*engine)),
            _ => {}
        }
        engines.iter().for_each(|engine| stacks.push(*engine));
    }
    stacks
}

/// Whether there are sockets that the kernel must not have: then also those are looked at that no engine can have.
pub fn restricts() -> bool {
    let restricts = |action: Action| matches!(action, Action::EngineOnly | Action::Refuse);
    let policy = &given().policy;
    restricts(policy.otherwise) || policy.rules.iter().any(|rule| restricts(rule.action))
}

/// Whether engines are chosen by balance: then a winner is no better than another.
pub fn balances() -> bool {
    given().policy.priorities.iter().any(|priority| priority.iter().count() > 1)
}

/// All engines of the program, without a policy.
pub fn all_engines() -> ProtoStacks {
    let everything = Decision { action: Action::EngineOnly, engines: Engines::ALL, rule: 0 };
    stacks(everything, Endpoint::UNSPECIFIED_V4)
}

/// Spreads addresses and ports evenly (Fibonacci hashing).
fn hash(addr: Endpoint) -> usize {
    let key = u64::from(fold(addr.addr)) << 16 | u64::from(addr.port);
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize
}

/// Connections that this process gave each engine since that last told of its load, and when that was.
static GIVEN_SINCE: [AtomicU64; ENGINES_MAX] = [const { AtomicU64::new(0) }; ENGINES_MAX];

/// Smaller is better. An engine that is not there comes last, one that has not been asked yet is asked.
fn load_of(engine: EngineIdx) -> (u32, u32) {
    let Some(stack) = Stack::get(engine) else { return (u32::MAX, u32::MAX) };
    let load = stack.session.region().load();
    let age_ms = (sys::coarse_ms() as u32).wrapping_sub(load.at_ms);
    let busy = if age_ms < LOAD_HOLDS_MS { load.busy_permille / BUSY_STEP_PERMILLE } else { 0 };
    let since = GIVEN_SINCE[engine.index()].load(Ordering::Relaxed);
    let given = if (since >> 32) as u32 == load.at_ms { since as u32 } else { 0 };
    (busy, load.flows.saturating_add(given))
}

/// A connection went to this engine: it does not show in what the engine told last.
pub fn note_given(engine: EngineIdx) {
    if given().policy.balance != Balance::LeastLoaded {
        return;
    }
    let Some(stack) = Stack::attached(engine) else { return };
    let at_ms = stack.session.region().load().at_ms;
    let counted = |since: u64| {
        let before = if (since >> 32) as u32 == at_ms { since as u32 } else { 0 };
        Some(u64::from(at_ms) << 32 | u64::from(before.saturating_add(1)))
    };
    let _ = GIVEN_SINCE[engine.index()].fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_spread_evenly() {
        let mut counts = [0; 2];
        for host in 0..=255 {
            for port in [80, 443, 6379] {
                counts[hash(Endpoint::new([10, 0, 0, host], port)) % 2] += 1;
            }
        }
        assert!(counts.iter().all(|count| (300..=468).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_program_is_known_by_its_file_name() {
        let name = program_name();
        assert!(!name.is_empty() && !name.contains('/'), "{name}");
    }
}
