//! The load tools, run on either stack; their reports are read by `parse`. Used by `runner`.

use crate::error::{Error, Result};
use crate::parse::{self, Said};
use crate::row::{
    APPS_CONNECTIONS, CPS_CONNECTIONS, Direction, EVIL_PORT, Flood, HTTP_CONNECTIONS, KV_CONNECTIONS, Load,
    Row, SMALL, WEB_CONNECTIONS, Web,
};
use crate::sample::Stack;
use crate::stage::Stage;
use crate::tools;
use crate::transfer::{RUNS, Shape, Transfer};
use std::process::Command;
use std::time::Duration;
use toe_lab::child::{self, Finished, Program};
use toe_lab::wait::SOON;

/// Before toe-load begins to measure.
const WARM_UP: Duration = Duration::from_millis(200);
/// By then a client has made its file, and moved it once at least.
const FILE_READY: Duration = Duration::from_millis(1200);
/// What a transfer over a slow wire, or as many as the paper made, may take beside.
const SLOW: Duration = Duration::from_secs(60);
/// After the start of a tool that has no warm-up of its own: by then its connections are open.
const UNDER_WAY: Duration = Duration::from_millis(200);
/// Requests by which redis-benchmark's speed is found out, as it takes a number of requests and not a time.
const REDIS_TRIAL: u32 = 20_000;
/// Adds a line to wrk's distribution of latencies; it is run once, after the load.
const WRK_P999: &str = "\
done = function(summary, latency, requests)
    io.write(string.format('    99.9%%  %.2fus\\n', latency:percentile(99.9)))
end
";
/// Longest number of requests asked of it, against a trial that went wrong.
const REDIS_REQUESTS_MAX: f64 = 50e6;

/// A client that runs.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) program: Program,
    /// From its start to where the window may begin.
    pub(crate) delay: Duration,
    /// It has ended by then.
    pub(crate) limit: Duration,
}

/// Starts the row's client on `stack`, for a run of `seconds`.
pub(crate) fn start(stage: &Stage<'_>, row: &Row, stack: Stack, seconds: u32) -> Result<Client> {
    let (name, mut command, delay) = match row.load {
        Load::Http { keepalive, .. } => {
            ("wrk", wrk(stage, stack, (HTTP_CONNECTIONS, keepalive, "/file"), false, seconds)?, UNDER_WAY)
        }
        Load::Web { how, .. } => (
            "wrk",
            wrk(stage, stack, (WEB_CONNECTIONS, true, "/file"), how != Web::Plain, seconds)?,
            UNDER_WAY,
        ),
        Load::App(app) => {
            ("wrk", wrk(stage, stack, (APPS_CONNECTIONS, false, app.path()), false, seconds)?, UNDER_WAY)
        }
        Load::Redis { pipeline } => {
            let requests = redis_requests(stage, stack, pipeline, seconds)?;
            ("redis-benchmark", redis_benchmark(stage, stack, "get", pipeline, requests)?, UNDER_WAY)
        }
        Load::Memcached { keys } => ("memcaslap", memcaslap(stage, stack, keys, seconds)?, UNDER_WAY),
        Load::Messages { .. } | Load::MessageRr { .. } | Load::MessageWake { .. } => {
            ("toe-message", toe_message(stage, row, stack, seconds), WARM_UP + UNDER_WAY)
        }
        Load::File(transfer) => {
            let mut command = transfers(stage, transfer, stack);
            // Over a slow wire there is no time for more than is measured, and nothing to warm.
            let (warm_up, seconds, runs) = match transfer.shape {
                _ if stage.link.rate_kbit().is_some() => (Duration::ZERO, 0, 1),
                Shape::Large => (FILE_READY, seconds, 1),
                Shape::Paper { .. } => (WARM_UP, seconds, RUNS),
            };
            command.args(["--seconds", &seconds.to_string(), "--transfers", &runs.to_string()]);
            command.args(["--warmup", &warm_up.as_secs_f64().to_string()]);
            ("toe-load", command, warm_up + UNDER_WAY)
        }
        _ => {
            let mut command = toe_load(stage, row, stack);
            command.args(["--seconds", &seconds.to_string()]);
            if !matches!(row.load, Load::Wake | Load::DatagramOverload) {
                command.args(["--warmup", &WARM_UP.as_secs_f64().to_string()]);
            }
            ("toe-load", command, WARM_UP + UNDER_WAY)
        }
    };
    let program = Program::spawn(name, &mut command)?;
    let slow = if stage.link.rate_kbit().is_some() || row.is_of_paper() { SLOW } else { Duration::ZERO };
    Ok(Client { program, delay, limit: Duration::from_secs(seconds.into()) * 3 + SOON + slow })
}

/// Reads what the row's client said.
pub(crate) fn parse(row: &Row, finished: &Finished) -> Result<Said> {
    match row.load {
        Load::Http { .. } | Load::Web { .. } | Load::App(_) => parse::wrk::parse(&finished.output),
        Load::Redis { .. } => parse::redis::parse(&finished.stdout, "GET"),
        Load::Memcached { .. } => parse::memcaslap::parse(&finished.output),
        _ => parse::load::parse(&finished.stdout),
    }
}

/// Nanoseconds that toe-load's handler takes with no socket.
pub(crate) fn null_ns(stage: &Stage<'_>, size: u32) -> Result<f64> {
    let mut command = stage.server(Stack::Linux, &stage.lab.program("toe-load"));
    command.args(["null", "--size", &size.to_string(), "--seconds", "1"]);
    parse::load::parse_null(&child::run("toe-load null", &mut command, SOON)?.success()?.stdout)
}

/// toe-load's client for the row, without a length of time.
pub(crate) fn toe_load(stage: &Stage<'_>, row: &Row, stack: Stack) -> Command {
    let mut command = stage.client(stack, &stage.lab.program("toe-load"));
    let threads = stage.placement.threads;
    let words = match row.load {
        Load::Rr { size, depth, connections } => {
            format!("rr --size {size} --depth {depth} --connections {connections} --programs {threads}")
        }
        Load::Stream { flows, direction } => {
            let direction = match direction {
                Direction::Send => "send",
                Direction::Receive => "receive",
            };
            format!("stream --flows {flows} --direction {direction}")
        }
        Load::Cps { .. } => {
            format!("cps --size {SMALL} --connections {CPS_CONNECTIONS} --programs {threads}")
        }
        Load::Crowd { programs, connections } => {
            format!("rr --size {SMALL} --connections {connections} --programs {programs}")
        }
        Load::Idle { connections } => format!("idle --connections {connections}"),
        Load::Calls(calls) => calls.name().to_owned(),
        Load::Datagrams(flood) => udp_flood(flood),
        Load::DatagramsBeside(attack) => format!("udp-flood --rate 20000 --beside {}", attack.name()),
        Load::DatagramOverload => format!("udp-overload --size {SMALL}"),
        Load::DatagramRr => format!("udp-rr --size {SMALL}"),
        _ => format!("wake --size {SMALL}"),
    };
    command.args(words.split(' '));
    command.args(["--connect", &format!("{}:{}", stage.address(stack), stage.port(stack))]);
    command
}

/// The client of a row of transfers.
fn transfers(stage: &Stage<'_>, transfer: Transfer, stack: Stack) -> Command {
    let load = stage.lab.program("toe-load");
    let mut command = match transfer.is_native(stack) {
        true => stage.native_client(&load),
        false => stage.client(stack, &load),
    };
    command.args(transfer.words(stack).split(' '));
    if transfer.is_native(stack) {
        command.arg("--native").arg(stage.lab.program("libtoe.so"));
    }
    command.args(["--connect", &format!("{}:{}", stage.address(stack), stage.port(stack))]);
    command
}

fn udp_flood(Flood { size, batch, segments, direction, rate }: Flood) -> String {
    let direction = match direction {
        Direction::Send => "send",
        Direction::Receive => "receive",
    };
    let rate = rate.map(|rate| format!(" --rate {rate}")).unwrap_or_default();
    format!("udp-flood --size {size} --batch {batch} --segments {segments} --direction {direction}{rate}")
}

/// The client of a row of messages.
fn toe_message(stage: &Stage<'_>, row: &Row, stack: Stack, seconds: u32) -> Command {
    let program = stage.lab.program("toe-message");
    let (mut command, node) = match stack {
        Stack::Toe => stage.message_client(&program),
        Stack::Linux => (stage.client(stack, &program), ""),
    };
    let (mode, size, total_mb) = match row.load {
        Load::Messages { size, total_mb } => ("flood", size, total_mb),
        Load::MessageRr { size } | Load::MessageWake { size } => ("rr", size, 1),
        _ => ("rr", SMALL, 1),
    };
    command.args([mode, "--size", &size.to_string(), "--total", &format!("{total_mb}000000")]);
    command.args(["--seconds", &seconds.to_string(), "--warmup", &WARM_UP.as_secs_f64().to_string()]);
    if matches!(row.load, Load::MessageWake { .. }) {
        command.args(["--pause-us", "1000"]);
    }
    match stack {
        Stack::Toe => command.args(["--evil", &format!("{node}:{EVIL_PORT}")]),
        Stack::Linux => command.args(["--tcp", &format!("{}:{}", stage.address(stack), stage.port(stack))]),
    };
    command
}

fn wrk(
    stage: &Stage<'_>,
    stack: Stack,
    (connections, keepalive, path): (u32, bool, &str),
    is_secret: bool,
    seconds: u32,
) -> Result<Command> {
    let mut command = stage.client(stack, &tools::WRK.path()?);
    let threads = stage.placement.threads;
    command.args([
        &format!("-t{threads}"),
        &format!("-c{connections}"),
        &format!("-d{seconds}s"),
        "--latency",
    ]);
    // wrk's own report ends at 99 %.
    let script = stage.lab.dir().join("p999.lua");
    std::fs::write(&script, WRK_P999).map_err(|error| Error::failed(script.display().to_string(), error))?;
    command.arg("-s").arg(script);
    if !keepalive {
        command.args(["-H", "Connection: close"]);
    }
    let scheme = if is_secret { "https" } else { "http" };
    command.arg(format!("{scheme}://{}:{}{path}", stage.address(stack), stage.port(stack)));
    Ok(command)
}

fn redis_benchmark(
    stage: &Stage<'_>,
    stack: Stack,
    tests: &str,
    pipeline: u32,
    requests: u32,
) -> Result<Command> {
    let mut command = stage.client(stack, &tools::REDIS_BENCHMARK.path()?);
    command.args(["-h", stage.address(stack), "-p", &stage.port(stack).to_string(), "-t", tests, "--csv"]);
    for (flag, number) in [("-c", KV_CONNECTIONS), ("-P", pipeline), ("-n", requests)] {
        command.args([flag, &number.to_string()]);
    }
    Ok(command)
}

/// How many requests take about `seconds`. The trial also sets the key that is then asked for.
fn redis_requests(stage: &Stage<'_>, stack: Stack, pipeline: u32, seconds: u32) -> Result<u32> {
    let mut command = redis_benchmark(stage, stack, "set,get", pipeline, REDIS_TRIAL)?;
    let trial = child::run("redis-benchmark", &mut command, SOON)?.success()?;
    let rate = parse::redis::parse(&trial.stdout, "GET")?.rate.unwrap_or_default();
    Ok((rate * f64::from(seconds)).clamp(f64::from(REDIS_TRIAL), REDIS_REQUESTS_MAX) as u32)
}

fn memcaslap(stage: &Stage<'_>, stack: Stack, keys: u32, seconds: u32) -> Result<Command> {
    let mut command = stage.client(stack, &tools::MEMCASLAP.path()?);
    command.args(["-s", &format!("{}:{}", stage.address(stack), stage.port(stack))]);
    // As many threads as the server has; values of 64 bytes; statistics once, at the end.
    command.args(["-T", &stage.placement.threads.to_string(), "-X", "64", "-c", &KV_CONNECTIONS.to_string()]);
    command.args(["-t", &format!("{seconds}s"), "-S", &format!("{seconds}s"), "-d", &keys.to_string()]);
    Ok(command)
}
