//! Every script against the engine, in virtual time.

use std::path::Path;
use toe_script::verdict::Verdict;
use toe_script::{files, parse, verdict};

#[test]
fn every_script_holds_for_the_engine() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let scripts = files::read_all(&folder).unwrap_or_else(|error| panic!("{error}"));
    let verdicts = verdict::all(&scripts, 2, verdict::with_engine);
    let report = verdict::report(&scripts, &verdicts);
    println!("{report}");
    assert!(!verdicts.iter().any(verdict::Verdict::is_failure), "{report}");
}

/// What came of a script with these statements.
fn verdict_of(statements: &str) -> Verdict {
    let text = format!("rfc: 9293\nwhat: a test of the runner\nlinux: yes\n\n{statements}");
    let script = parse::parse(Path::new("test.toe"), &text).unwrap_or_else(|error| panic!("{error}"));
    verdict::with_engine(&script)
}

#[track_caller]
fn fails(statements: &str, why: &str) {
    match verdict_of(statements) {
        Verdict::Failed(text) => assert!(text.contains(why), "{text}"),
        other => panic!("{other:?} of:\n{statements}"),
    }
}

/// The runner sees each kind of difference: none of these scripts is right.
#[test]
fn what_is_not_as_the_script_says_is_found() {
    let open = "listen\ninject syn seq 0 mss 1460\n";
    fails(&format!("{open}expect syn ack 2"), "ack: 1 instead of 2");
    fails(&format!("{open}expect syn ack 1 mss 1400"), "mss: 1460 instead of 1400");
    fails(&format!("{open}expect syn ack 1 no mss"), "mss: there");
    fails(&format!("{open}expect syn ack 1 sackok"), "sackok: not there");
    fails(&format!("{open}expect syn ece ack 1"), "flags: syn ack instead of syn ece ack");
    fails(&format!("{open}expect syn ack 1 win ..1000"), "instead of at most 1000");
    fails(&format!("{open}expect syn ack 1 ecn ect0"), "codepoint 00");
    fails(&format!("{open}+40ms expect syn ack 1"), "time: 0.000000 s");
    fails(&format!("{open}b: expect syn ack 1"), "connection: a instead of b");
    fails(open, "the stack sent what no line expects: syn seq 0 ack 1");
    fails(&format!("{open}expect syn ack 1\nexpect ack 1"), "the stack sent nothing within");
    fails("open passive\nsend 10", "the stack sent what no line expects: psh seq 1 ack 1 len 10");
    fails("open passive\nsend 10\nexpect seq 1 len 11", "len: 10 instead of 11");
    fails("open passive\nread 1", "the call gave nothing");
    fails("open passive\nstate CLOSE-WAIT", "the call gave ESTABLISHED");
    fails(
        "open passive\ninject seq 1 ack 1 len 9 altered\n+0..500ms expect ack 10\nread 9",
        "byte 0 of the stream",
    );
    fails("open passive\naccept gives nothing\nquiet 1s\nread gives eof", "the call gave nothing");
}

/// The lines around the one that failed and the segments before it are shown.
#[test]
fn a_failure_shows_where_it_is() {
    let Verdict::Failed(text) = verdict_of("open passive\nsend 10\nexpect seq 2 len 10 # wrong") else {
        panic!("it does not hold")
    };
    assert!(text.contains("test.toe:7: the stack sent another segment"), "{text}");
    assert!(text.contains(">   7  expect seq 2 len 10 # wrong"), "{text}");
    assert!(text.contains("far   syn seq 0 len 0 win 65535 mss 1460"), "{text}");
    assert!(text.contains("got:      psh seq 1 ack 1 len 10 win"), "{text}");
}
