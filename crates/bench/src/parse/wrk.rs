//! The report of wrk(1) with `--latency`.

use super::Said;
use crate::error::{Error, Result};
use crate::sample::Latency;

const TOOL: &str = "wrk";

/// Reads a report. One with errors is refused: a stack that loses answers has no figure.
pub(crate) fn parse(output: &str) -> Result<Said> {
    let wrong = |cause: &str| Error::unreadable(TOOL, cause, output);
    let mut rate = None;
    let mut latency = Latency::default();
    for line in output.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("Requests/sec:") {
            rate = text.trim().parse::<f64>().ok();
        } else if let Some(kinds) = line.strip_prefix("Socket errors:") {
            return Err(wrong(&format!("it met socket errors ({})", kinds.trim())));
        } else if let Some(count) = line.strip_prefix("Non-2xx or 3xx responses:") {
            return Err(wrong(&format!("{} answers say that they failed", count.trim())));
        } else if let Some((share, time)) = line.split_once('%') {
            let place = match share {
                "50" => &mut latency.p50,
                "90" => &mut latency.p90,
                "99" => &mut latency.p99,
                "99.9" => &mut latency.p999,
                _ => continue,
            };
            *place = Some(microseconds(time.trim()).ok_or_else(|| wrong("no time after a percentage"))?);
        }
    }
    let rate = rate.ok_or_else(|| wrong("it has no line 'Requests/sec:'"))?;
    if latency.p50.is_none() || latency.p99.is_none() {
        return Err(wrong("it has no distribution of latencies"));
    }
    Ok(Said { rate: Some(rate), latency: Some(latency), ..Said::default() })
}

/// `612.00us`, `1.05ms`, `2.00s`, `1.20m`.
fn microseconds(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6), ("h", 3600e6)];
    let (number, scale) =
        units.iter().find_map(|(unit, scale)| text.strip_suffix(unit).map(|number| (number, scale)))?;
    Some(number.parse::<f64>().ok()? * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
Running 2s test @ http://127.0.0.1:18080/small
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.19ms  222.97us   6.21ms   93.08%
    Req/Sec    53.90k     2.50k   57.13k    85.00%
  Latency Distribution
     50%    1.14ms
     75%    1.18ms
     90%  999.00us
     99%    2.26s
  107242 requests in 2.00s, 50.42MB read
Requests/sec:  53607.51
Transfer/sec:     25.20MB
    99.9%  3120.00us
";

    #[test]
    fn a_report_is_read() {
        let said = parse(REPORT).expect("a report");
        let wanted = Latency {
            p50: Some(1140.0),
            p90: Some(999.0),
            p99: Some(2_260_000.0),
            p999: Some(3120.0),
            ..Latency::default()
        };
        assert_eq!(said, Said { rate: Some(53607.51), latency: Some(wanted), ..Said::default() });
    }

    #[test]
    fn a_report_with_errors_is_refused() {
        for line in
            ["  Socket errors: connect 0, read 2, write 0, timeout 0", "  Non-2xx or 3xx responses: 5"]
        {
            let error = parse(&format!("{REPORT}{line}\n")).expect_err("refused").to_string();
            assert!(error.starts_with("wrk: ") && error.contains(line.trim()), "{error}");
        }
    }

    #[test]
    fn what_is_no_report_is_refused() {
        assert!(parse("unable to connect to 127.0.0.1:1 Connection refused\n").is_err());
        assert!(parse("Requests/sec: 7\n").is_err());
        assert!(parse(&REPORT.replace("1.14ms", "soon")).is_err());
    }
}
