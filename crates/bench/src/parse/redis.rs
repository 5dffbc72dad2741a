//! The report of redis-benchmark(1) with `--csv`.

use super::Said;
use crate::error::{Error, Result};
use crate::sample::Latency;

const TOOL: &str = "redis-benchmark";

/// Reads the line of `test`, by the names in the heading: versions differ in which columns there are.
pub(crate) fn parse(output: &str, test: &str) -> Result<Said> {
    let wrong = |cause: &str| Error::unreadable(TOOL, cause, output);
    let fields = |line: &str| -> Vec<String> {
        line.split(',').map(|field| field.trim().trim_matches('"').to_owned()).collect()
    };
    let find = |first: &str| output.lines().map(fields).find(|row| row.first().is_some_and(|f| f == first));
    let heading = find("test").ok_or_else(|| wrong("it has no heading (redis 6.2 or later writes one)"))?;
    let row = find(test).ok_or_else(|| wrong(&format!("it has no line for {test}")))?;
    let value = |name: &str| -> Result<f64> {
        let place = heading.iter().position(|column| column == name);
        let text = place.and_then(|place| row.get(place));
        text.and_then(|text| text.parse().ok()).ok_or_else(|| wrong(&format!("it has no figure for {name}")))
    };
    let milliseconds = |name: &str| -> Result<Option<f64>> { Ok(Some(value(name)? * 1000.0)) };
    let latency = Latency {
        mean: milliseconds("avg_latency_ms")?,
        p50: milliseconds("p50_latency_ms")?,
        p95: milliseconds("p95_latency_ms")?,
        p99: milliseconds("p99_latency_ms")?,
        max: milliseconds("max_latency_ms")?,
        ..Latency::default()
    };
    Ok(Said { rate: Some(value("rps")?), latency: Some(latency), ..Said::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"
\"SET\",\"111111.11\",\"0.2\",\"0.1\",\"0.2\",\"0.3\",\"0.4\",\"0.5\"
\"GET\",\"100000.00\",\"0.264\",\"0.056\",\"0.255\",\"0.375\",\"0.503\",\"1.207\"
";

    #[test]
    fn the_line_of_the_test_is_read() {
        let said = parse(REPORT, "GET").expect("a report");
        assert_eq!(said.rate, Some(100_000.0));
        let latency = said.latency.expect("latencies");
        assert_eq!((latency.p50, latency.p99, latency.max), (Some(255.0), Some(503.0), Some(1207.0)));
    }

    #[test]
    fn what_is_no_report_is_refused() {
        assert!(parse("Could not connect to Redis at 127.0.0.1:6379: Connection refused\n", "GET").is_err());
        assert!(parse(REPORT, "MSET").is_err());
        assert!(parse(&REPORT.replace("100000.00", "many"), "GET").is_err());
    }
}
