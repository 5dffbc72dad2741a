//! libfabric's provider as its users have it: libfabric's own tools, a list like that of fabtests, and Open MPI, none of which knows of it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use toe_tests::bins;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::wait::SOON;

/// Where the two programs of a pair are.
const PLACES: [[Side; 2]; 2] = [[Side::Server, Side::Server], [Side::Server, Side::Client]];

fn source(name: &str) -> PathBuf {
    bins::workspace().join("crates/tests/programs").join(name)
}

fn build(compiler: &str, name: &str, to: &Path, library: &[&str]) {
    let mut cc = Command::new(compiler);
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-o"])
        .arg(to)
        .arg(source(name))
        .args(library);
    child::run(compiler, &mut cc, SOON).expect_success(compiler);
}

/// A lab in which libfabric finds the provider.
fn lab() -> Lab {
    let lab = Lab::new();
    let dir = lab.dir().join("fabric");
    std::fs::create_dir(&dir).expect("a directory");
    std::os::unix::fs::symlink(bins::dir().join("libtoe_fi.so"), dir.join("libtoe-fi.so")).expect("a link");
    lab
}

/// A program that uses libfabric, at a node of its own.
fn at_node(lab: &Lab, engine: &Engine, side: Side, node: &str, program: impl AsRef<Path>) -> Command {
    let mut command = lab.command(side, program);
    command.env("TOE_ENGINE", format!("/run/opentoe/{}.sock", engine.name()));
    command.env("TOE_VIA_NODE", node).env("FI_PROVIDER_PATH", lab.dir().join("fabric"));
    // Cargo points it at libraries of another build.
    command.env_remove("LD_LIBRARY_PATH");
    command
}

#[test]
fn what_is_offered_is_offered_where_an_engine_is() {
    let lab = lab();
    let engine = Engine::local(&lab);
    let mut info = at_node(&lab, &engine, Side::Server, "one", "fi_info");
    let said = child::run("fi_info", info.args(["-p", "toe"]), SOON).expect_success("fi_info");
    assert!(said.contains("provider: toe\n") && said.contains("type: FI_EP_MSG"), "{said}");
    for endpoint in ["FI_EP_RDM", "FI_EP_DGRAM"] {
        let mut info = at_node(&lab, &engine, Side::Server, "one", "fi_info");
        let said = child::run("fi_info", info.args(["-p", "toe", "-t", endpoint]), SOON).output;
        assert!(!said.contains("provider: toe\n"), "{said}");
    }
    let mut info = at_node(&lab, &engine, Side::Server, "one", "fi_info");
    let info = info.args(["-p", "toe;ofi_rxm", "-c", "FI_TAGGED"]);
    let said = child::run("fi_info", info, SOON).expect_success("fi_info");
    assert!(said.contains("provider: toe;ofi_rxm") && said.contains("type: FI_EP_RDM"), "{said}");
    drop(engine);
    let mut info = lab.command(Side::Server, "fi_info");
    info.env("TOE_ENGINE", "/nonexistent").env("FI_PROVIDER_PATH", lab.dir().join("fabric"));
    let said = child::run("fi_info", info.args(["-p", "toe"]), SOON).output;
    assert!(!said.contains("provider: toe"), "without an engine: {said}");
}

/// Both programs of a pair; the second one gets `node` as the name of the first one's.
fn both(lab: &Lab, engine: &Engine, [server, client]: [Side; 2], program: &Path, words: [&[&str]; 2]) {
    let mut serve = at_node(lab, engine, server, "one", program);
    let serve = Program::spawn("server", serve.args(words[0]));
    let mut connect = at_node(lab, engine, client, "two", program);
    let client = Program::spawn("client", connect.args(words[1])).wait(SOON).expect_success("client");
    let server = serve.wait(SOON).expect_success("server");
    for said in [client, server] {
        assert!(said.contains("all as it should be"), "{said}");
    }
}

#[test]
fn a_list_like_that_of_fabtests() {
    let lab = lab();
    let engine = Engine::local(&lab);
    let program = lab.dir().join("fabric_list");
    build("cc", "fabric_list.c", &program, &["-lfabric"]);
    for sides in PLACES {
        both(&lab, &engine, sides, &program, [&["serve"], &["connect", "one"]]);
    }
    engine.wait_until_idle(SOON);
}

#[test]
fn fi_pingpong() {
    let lab = lab();
    let engine = Engine::local(&lab);
    for (provider, endpoint) in [("toe", "msg"), ("toe;ofi_rxm", "rdm")] {
        // It checks what it gets (-c), and does all sizes. Its own control connection is one of the kernel's.
        let words = ["-p", provider, "-e", endpoint, "-c", "-I", "20"];
        let mut serve = at_node(&lab, &engine, Side::Server, "one", "fi_pingpong");
        let server = Program::spawn("fi_pingpong", serve.args(words));
        let connect = || {
            let mut connect = at_node(&lab, &engine, Side::Server, "one", "fi_pingpong");
            child::run("fi_pingpong", connect.args(words).arg("127.0.0.1"), SOON)
        };
        // It does not say when it listens.
        let mut client = connect();
        while client.output.contains("Connection refused") {
            client = connect();
        }
        let said = client.expect_success("fi_pingpong");
        assert!(said.lines().any(|line| line.starts_with("1m ")), "{said}");
        server.wait(SOON).expect_success("fi_pingpong");
    }
    engine.wait_until_idle(SOON);
}

/// The arguments of an mpirun whose messages all go by the provider, also those of one-sided access.
const MPIRUN: [&str; 24] = [
    "--allow-run-as-root",
    "--oversubscribe",
    "-np",
    "4",
    "--mca",
    "pml",
    "cm",
    "--mca",
    "mtl",
    "ofi",
    "--mca",
    "mtl_ofi_provider_include",
    "toe;ofi_rxm",
    "--mca",
    "btl",
    "self",
    "--mca",
    "osc",
    "pt2pt",
    "--mca",
    "mpi_yield_when_idle",
    "1",
    "--mca",
    "plm_rsh_no_tree_spawn",
];

/// Runs the program to its end. Each step, of which rank 0 tells, has [`SOON`]. Open MPI's processes look for messages and never sleep, so on a
/// busy machine one turn of all that run passes for each message or two, whatever carries it.
fn run_mpi(mpirun: &mut Command) {
    let mut job = Program::spawn("mpirun", mpirun.arg("2500"));
    for step in ["begun", "collectives", "one-sided"] {
        job.wait_for_line(step, SOON);
    }
    for received in (1..=100).map(|step| step * 25) {
        job.wait_for_line(&format!("{received} received here"), SOON);
    }
    let said = job.wait(SOON).expect_success("mpirun");
    assert!(said.contains("10000 messages"), "{said}");
}

#[test]
fn open_mpi_in_one_namespace() {
    let lab = lab();
    let engine = Engine::local(&lab);
    let program = lab.dir().join("mpi");
    build("mpicc", "fabric_mpi.c", &program, &[]);
    let mut mpirun = at_node(&lab, &engine, Side::Server, "one", "mpirun");
    run_mpi(mpirun.args(MPIRUN).arg("1").arg(&program));
    engine.wait_until_idle(SOON);
}

/// Each process has a network, a host name, System V memory and /dev/shm of its own. Job start needs a network (Open MPI's own
/// control connections); messages do not touch it.
#[test]
fn open_mpi_in_four_namespaces() {
    let lab = lab();
    let engine = Engine::local(&lab);
    let program = lab.dir().join("mpi");
    build("mpicc", "fabric_mpi.c", &program, &[]);
    let agent = lab.dir().join("agent");
    std::fs::write(&agent, include_str!("../../programs/fabric_agent.sh")).expect("agent");
    std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755)).expect("agent");
    let hosts = lab.dir().join("hosts");
    let list: String = (1..=4).map(|host| format!("10.77.0.{host} slots=1\n")).collect();
    std::fs::write(&hosts, list).expect("hosts");
    for words in ["link add job type bridge", "addr add 10.77.0.254/24 dev job", "link set job up"] {
        let mut ip = lab.command(Side::Server, "ip");
        child::run("ip", ip.args(words.split(' ')), SOON).expect_success("ip");
    }
    let mut mpirun = at_node(&lab, &engine, Side::Server, "one", "mpirun");
    mpirun.env("JOB_NETWORK", format!("/run/netns/{}", lab.namespace(Side::Server)));
    mpirun.args(MPIRUN).arg("1").arg("--hostfile").arg(&hosts).args(["--map-by", "node"]);
    mpirun.args(["--mca", "plm_rsh_agent"]).arg(&agent);
    run_mpi(mpirun.args(["--mca", "oob_tcp_if_include", "10.77.0.0/24"]).arg(&program));
    engine.wait_until_idle(SOON);
}

#[test]
fn a_peer_that_is_killed_ends_its_endpoints_and_no_others() {
    let lab = lab();
    let engine = Engine::local(&lab);
    let program = lab.dir().join("fabric_list");
    build("cc", "fabric_list.c", &program, &["-lfabric"]);
    let mut serve = at_node(&lab, &engine, Side::Server, "one", &program);
    let mut server = Program::spawn("server", serve.args(["serve-killed"]));
    let mut connect = at_node(&lab, &engine, Side::Client, "two", &program);
    let mut victim = Program::spawn("victim", connect.args(["be-killed", "one"]));
    victim.wait_for_line("connected", SOON);
    server.wait_for_line("connected", SOON);
    victim.signal(rustix::process::Signal::KILL);
    let said = server.wait(SOON).expect_success("server");
    assert!(said.contains("all as it should be"), "{said}");
    // Another pair, at the same engine.
    both(&lab, &engine, PLACES[1], &program, [&["serve"], &["connect", "one"]]);
    engine.wait_until_idle(SOON);
}
