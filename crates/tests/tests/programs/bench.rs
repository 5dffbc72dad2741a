//! `toe bench`: it measures, says so in the promised shape, and leaves nothing behind. (How fast is not a test's matter.)

use rustix::process::Signal;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;
use toe_tests::bins;
use toe_tests::child::{self, Program};
use toe_tests::wait::SOON;

const LIMIT: Duration = Duration::from_secs(60);

fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(bins::path("toe"));
    command.arg("bench").args(args).env_remove("TOE_ENGINE");
    command
}

/// Names of namespaces and directories of the `toe bench` with process number `pid`.
fn left_by(pid: u32) -> Vec<String> {
    let prefix = format!("toebench-{pid}-");
    let dirs = ["/run/netns".into(), std::env::temp_dir(), "/run/opentoe".into()];
    let entries = dirs.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

#[test]
fn a_quick_run_has_the_promised_shape() {
    let dir = std::env::temp_dir().join(format!("toetest-{}-bench", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let html = dir.join("bench.html");
    // JSON alone on the standard output; progress goes to the other.
    let mut command = bench(&["--quick", "rr", "wake", "--link", "local", "--json", "-", "--html"]);
    let child = command.arg(&html).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("toe bench");
    let pid = child.id();
    let output = child.wait_with_output().expect("toe bench");
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && progress.contains("left"), "{}: {progress}", output.status);
    assert_eq!(left_by(pid), Vec::<String>::new());

    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["schema"], 2);
    let rows = report["rows"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["local/rr/64B-d1-c1", "local/wake/64B"]);
    for row in rows {
        assert_eq!(row["cores"], "spare");
        for stack in ["linux", "toe"] {
            let medians = &row["medians"][stack];
            for figure in ["rate", "p50_us", "p99_us", "server_cpu_us", "total_cpu_us", "memory_kib"] {
                let median = medians[figure]["median"].as_f64();
                assert!(median.is_some_and(|median| median > 0.0), "{stack} {figure}: {medians}");
            }
        }
        // The engine has no part in a connection that goes from program to program.
        assert!(row["medians"]["toe"]["engine_cpu_us"]["median"].as_f64().is_some_and(|us| us >= 0.0));
        assert_eq!(row["samples"].as_array().map(Vec::len), Some(2), "one round on each stack");
    }
    let judged = report["targets"].as_array().expect("targets");
    assert!(judged.iter().any(|target| target["row"] == "local/wake/64B" && target["reached"].is_boolean()));
    let page = std::fs::read_to_string(&html).expect("bench.html");
    assert!(page.contains("local/wake/64B") && page.contains("</svg>"));
    std::fs::remove_dir_all(&dir).expect("removed");
    println!("{progress}");
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let mut program = Program::spawn("toe bench", &mut bench(&["rr", "--link", "veth"]));
    let pid = program.pid();
    // The first row is done: engine, server and namespaces are there.
    program.wait_for_line("ratio", LIMIT);
    assert!(!left_by(pid).is_empty());
    program.signal(Signal::INT);
    let finished = program.wait(SOON);
    assert_eq!(finished.status.code(), Some(130), "{}", finished.output);
    assert_eq!(left_by(pid), Vec::<String>::new());
}

#[test]
fn wrong_wishes_are_refused() {
    for (args, words) in [
        (&["--cpus", "0-4096"][..], "no processor"),
        (&["nothing"][..], "'nothing' is no workload"),
        (&["--link", "wire"][..], "'wire' is no link"),
        (&["--row", "no/such/row"][..], "toe bench --list"),
    ] {
        let finished = child::run("toe bench", &mut bench(args), SOON);
        assert!(!finished.status.success() && finished.output.contains(words), "{}", finished.output);
    }
    let listed = child::run("toe bench", &mut bench(&["--list", "wake"]), SOON).expect_success("--list");
    assert_eq!(listed, "local/wake/64B\nveth/wake/64B\n");
}
