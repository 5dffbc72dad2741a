//! The JSON lines of `toe-load`.

use super::{OwnCpu, Said};
use crate::error::{Error, Result};
use crate::sample::{Datagrams, Latency};
use serde::Deserialize;

const TOOL: &str = "toe-load";
const MIB: f64 = 1_048_576.0;

/// The object that a client prints at its end.
#[derive(Debug, Deserialize)]
struct Report {
    mode: String,
    seconds: f64,
    rate: Option<f64>,
    bytes_per_second: Option<f64>,
    latency_us: Option<Microseconds>,
    bytes: Option<f64>,
    /// Of the thread that asks for transfers, as the next two are of its process.
    thread_us: Option<f64>,
    #[serde(default)]
    user_us: f64,
    #[serde(default)]
    system_us: f64,
    lost_percent: Option<f64>,
    kept_percent: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Microseconds {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
    mean: f64,
}

/// The object that `toe-load null` prints.
#[derive(Debug, Deserialize)]
struct Null {
    ns_per_request: f64,
}

/// Reads what a client printed on its standard output. Streams and transfers count in MiB, all else in operations.
pub(crate) fn parse(output: &str) -> Result<Said> {
    let wrong = |cause: &str| Error::unreadable(TOOL, cause, output);
    let line = output.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
    let report: Report = serde_json::from_str(line).map_err(|error| wrong(&error.to_string()))?;
    if report.seconds <= 0.0 {
        return Err(wrong("it measured no time"));
    }
    let rate = match report.mode.as_str() {
        "stream" | "transfer" => report.bytes_per_second.map(|rate| rate / MIB),
        _ => report.rate,
    };
    let rate = rate.filter(|rate| *rate > 0.0).ok_or_else(|| wrong("it has no rate"))?;
    let latency = report.latency_us.map(|l| Latency {
        mean: Some(l.mean),
        p50: Some(l.p50),
        p90: Some(l.p90),
        p95: None,
        p99: Some(l.p99),
        p999: Some(l.p999),
        max: Some(l.max),
    });
    let own_cpu = report.thread_us.zip(report.bytes).map(|(thread, bytes)| {
        let mib = bytes / MIB;
        OwnCpu { thread: thread / mib, process: (report.user_us + report.system_us) / mib }
    });
    let datagrams = Datagrams { lost_percent: report.lost_percent, kept_percent: report.kept_percent };
    Ok(Said { rate: Some(rate), latency, datagrams, own_cpu })
}

/// Reads what `toe-load null` printed: nanoseconds a request.
pub(crate) fn parse_null(output: &str) -> Result<f64> {
    let null: Null = serde_json::from_str(output.trim())
        .map_err(|error| Error::unreadable("toe-load null", error, output))?;
    Ok(null.ns_per_request)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RR: &str = r#"{"mode":"rr","requests":50000,"bytes":3200000,"seconds":1.0,"rate":50000.0,"latency_us":{"min":15.1,"p50":18.2,"p90":20.0,"p99":31.5,"p999":80.0,"max":900.0,"mean":19.0},"user_us":100000,"system_us":400000}"#;

    #[test]
    fn a_report_of_rr_is_read() {
        let said = parse(RR).expect("a report");
        assert_eq!(said.rate, Some(50_000.0));
        let latency = said.latency.expect("latencies");
        assert_eq!((latency.p50, latency.p999, latency.mean), (Some(18.2), Some(80.0), Some(19.0)));
    }

    #[test]
    fn a_report_of_stream_counts_in_mib() {
        let stream = r#"{"mode":"stream","requests":null,"bytes":2097152,"seconds":1.0,"rate":2.0,"latency_us":null,"bytes_per_second":2097152.0}"#;
        assert_eq!(
            parse(stream).expect("a report"),
            Said { rate: Some(2.0), latency: None, ..Said::default() }
        );
    }

    #[test]
    fn a_report_of_transfers_has_the_processor_time_of_their_thread() {
        let report = r#"{"mode":"transfer","requests":2,"bytes":4194304,"seconds":1.0,"bytes_per_second":4194304.0,"thread_us":100,"latency_us":null,"user_us":100,"system_us":300}"#;
        let said = parse(report).expect("a report");
        assert_eq!(said.own_cpu, Some(OwnCpu { thread: 25.0, process: 100.0 }));
        assert_eq!(said.rate, Some(4.0));
    }

    #[test]
    fn a_report_of_datagrams_says_what_was_lost_and_kept() {
        let overload = r#"{"mode":"udp-overload","requests":50,"sent":200,"seconds":1.0,"rate":50.0,"latency_us":null,"lost_percent":75.0,"kept_percent":98.5,"user_us":1,"system_us":2}"#;
        let said = parse(overload).expect("a report").datagrams;
        assert_eq!(said, Datagrams { lost_percent: Some(75.0), kept_percent: Some(98.5) });
        assert_eq!(parse(RR).expect("a report").datagrams, Datagrams::default());
    }

    #[test]
    fn what_is_no_report_is_refused() {
        assert!(parse("").is_err());
        assert!(parse("{\"mode\":\"rr\",\"seconds\":1.0}").is_err());
        let nothing = RR.replace("\"rate\":50000.0", "\"rate\":0.0");
        assert!(parse(&nothing).expect_err("refused").to_string().contains("no rate"));
        assert!(parse(&RR.replace("\"seconds\":1.0", "\"seconds\":0")).is_err());
    }

    #[test]
    fn the_empty_handler_is_read() {
        let null = r#"{"mode":"null","rate":1e7,"ns_per_request":12.5}"#;
        assert_eq!(parse_null(null).expect("a figure"), 12.5);
        assert!(parse_null("{}").is_err());
    }
}
