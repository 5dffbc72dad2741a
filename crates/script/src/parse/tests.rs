//! The parser's errors and its understanding of each statement.

use super::{ParseError, parse};
use crate::script::*;
use std::path::Path;

const HEADER: &str = "rfc: 9293 section 3.5\nwhat: a thing\nlinux: yes\n\n";

fn script(body: &str) -> Result<Script, ParseError> {
    parse(Path::new("x.toe"), &format!("{HEADER}{body}"))
}

fn error(body: &str) -> String {
    script(body).expect_err("wrong").to_string()
}

#[test]
fn a_statement_is_when_who_and_what() {
    let script = script("open passive\n+40ms..0.06 b: expect ack 1..5 len 10 no ts # why\n").expect("right");
    let [_, step] = script.steps.as_slice() else { panic!("{script:?}") };
    assert_eq!((step.line, step.conn, step.when), (6, ConnName(1), When::Between(40_000, 60_000)));
    let Act::Expect(spec) = &step.act else { panic!("{step:?}") };
    assert_eq!(spec.ack, AckSpec::Of(Span { from: 1, to: 5 }));
    assert_eq!(spec.len, Some(Span::one(10)));
    assert_eq!(spec.stamps, Want::Absent);
    assert_eq!(spec.mss, Want::Unsaid);
}

#[test]
fn errors_say_where_and_what_was_expected() {
    assert_eq!(
        error("inject syn seq x\n"),
        "x.toe:5:16: expected a number, a span such as 10..20, 10.. or ..20, or `any`, found `x`"
    );
    assert!(
        error("frobnicate\n").starts_with("x.toe:5:1: expected a statement (inject,"),
        "{}",
        error("frobnicate\n")
    );
    assert!(
        error("listen\n\ninject ack seq\n").contains("x.toe:7:15:"),
        "{}",
        error("listen\n\ninject ack seq\n")
    );
    assert!(error("send\n").contains("how many bytes"));
    assert!(error("read gives ESOMETHING\n").contains("the name of an error"));
    assert!(error("inject seq 1..2\n").contains("not spans"));
    assert!(error("+1s..2s inject ack\n").contains("only `expect` and `allow`"));
    assert!(error("").contains("statements behind the header"));
}

#[test]
fn a_header_says_what_it_must() {
    let of = |text| parse(Path::new("x.toe"), text).map(|s| s.header);
    let lacks = of("rfc: 1\nlinux: yes\n\nlisten\n").expect_err("no what").to_string();
    assert!(lacks.contains("what: with the behaviour"), "{lacks}");
    let unknown = of("rfc: 1\nwhat: x\nlinix: yes\n\nlisten\n").expect_err("unknown").to_string();
    assert!(unknown.starts_with("x.toe:3:1: expected rfc:"), "{unknown}");
    let reason = of("rfc: 1\nwhat: x\nlinux: no\n\nlisten\n").expect_err("no reason").to_string();
    assert!(reason.contains("reason in quotation marks"), "{reason}");
    let header =
        of("rfc: 1\nwhat: x\nlinux: differs \"it waits\"\nsetup: ecn on\n\nlisten\nlinux: quiet 1s\n")
            .expect("right");
    assert_eq!(header.linux, OnLinux::Differs("it waits".to_owned()));
    assert_eq!(header.setup, [Setting { name: SettingName::Ecn, value: "on".to_owned() }]);
}

#[test]
fn times_are_read_in_three_ways() {
    for (text, us) in [("40ms", 40_000), ("0.04", 40_000), ("1.5s", 1_500_000), ("0.5ms", 500)] {
        let script = script(&format!("quiet {text}\n")).expect("right");
        assert_eq!(script.steps[0].act, Act::Quiet(us), "{text}");
    }
    assert!(error("quiet soon\n").contains("a time such as"));
    assert!(error("quiet .5\n").contains("a time such as"));
}

/// What Linux does where it differs stands in the script, or any failure would do.
#[test]
fn where_linux_differs_it_is_said_how() {
    let of = |linux: &str, body: &str| {
        let text = format!("rfc: 1\nwhat: x\nlinux: {linux}\nisn: 1\n\n{body}");
        parse(Path::new("x.toe"), &text).map_err(|error| error.to_string())
    };
    let differs = "differs \"it waits\"";
    let body = "listen\nexpect syn seq 0\nlinux: +1s quiet 2s\nexpect ack 1\n";
    let script = of(differs, body).expect("right");
    assert_eq!(script.steps.len(), 3);
    let of_linux = script.of_linux();
    assert_eq!((of_linux.steps.len(), of_linux.header.tail_us), (2, 0));
    assert_eq!(of_linux.steps[1].act, Act::Quiet(2_000_000));
    assert!(of(differs, "listen\n").is_err_and(|error| error.contains("with what Linux does")));
    assert!(of("yes", body).is_err_and(|error| error.contains("with what Linux does")));
    for body in
        ["linux: quiet 1s\nlisten\n", "listen\nlinux: quiet 1s\nlinux: quiet 1s\n", "listen\nlinux:\n"]
    {
        assert!(of(differs, body).is_err_and(|error| error.contains("one `linux:` line")), "{body}");
    }
}
