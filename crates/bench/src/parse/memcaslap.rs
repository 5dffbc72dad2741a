//! The report of memaslap, which Debian calls memcaslap(1).

use super::Said;
use crate::error::{Error, Result};
use crate::sample::Latency;

const TOOL: &str = "memcaslap";

/// Reads a report: the rate of keys, and the mean time of a response.
pub(crate) fn parse(output: &str) -> Result<Said> {
    let wrong = |cause: &str| Error::unreadable(TOOL, cause, output);
    let last = output.lines().find(|line| line.starts_with("Run time:"));
    let last = last.ok_or_else(|| wrong("it has no line 'Run time:'"))?;
    let rate: f64 =
        after(last, "TPS:").and_then(|text| text.parse().ok()).ok_or_else(|| wrong("no figure for TPS"))?;
    if output.lines().any(|line| !matches!(after(line, "get_misses:"), None | Some("0"))) {
        return Err(wrong("keys were not found that it had set"));
    }
    // The last of these is of the whole run; what stands before are periods, and get and set apart.
    let total = output.rsplit("Total Statistics").next().unwrap_or_default();
    let mean = total.lines().find_map(|line| after(line, "Avg:")).and_then(|text| text.parse().ok());
    Ok(Said { rate: Some(rate), latency: Some(Latency { mean, ..Latency::default() }), ..Said::default() })
}

/// The word after `name`.
fn after<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_once(name)?.1.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
Total Statistics
Type     Time(s)  Ops          TPS(ops/s)   Net(M/s)   Get_miss   Min(us)  Max(us)    Avg(us)    Std_dev    Geo_dist
Period   2        122639       61319        63.6       0          17       9408       813        543.77     651.83

Get Statistics (44146 events)
   Avg:       823

Total Statistics (122690 events)
   Min:        17
   Max:      9408
   Avg:       813

cmd_get: 706608
get_misses: 0

Run time: 2.0s Ops: 785185 TPS: 392556 Net_rate: 75.9M/s";

    #[test]
    fn a_report_is_read() {
        let said = parse(REPORT).expect("a report");
        assert_eq!(said.rate, Some(392_556.0));
        assert_eq!(said.latency.and_then(|latency| latency.mean), Some(813.0));
    }

    #[test]
    fn what_is_no_report_is_refused() {
        assert!(parse("conn_sock_errno: Connection refused\n").is_err());
        let missed = parse(&REPORT.replace("get_misses: 0", "get_misses: 3"));
        assert!(missed.expect_err("refused").to_string().contains("not found"));
    }
}
