//! The report as one HTML page that needs no other file: machine, targets, and for each workload plots and a table.

use super::Report;
use super::svg::{self, Bar, BarRow, LatencyRow, escape, stack_class};
use super::text::{self, microseconds};
use crate::options::{Link, Workload};
use crate::sample::{Figure, Measured, Stack};
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// The whole page.
pub(crate) fn whole(report: &Report) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>toe bench, {}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Linux's stack and OpenTOE</h1>\n",
        escape(&report.machine.date)
    );
    out += &machine(report);
    out += &targets(report);
    for link in Link::ALL {
        for workload in Workload::ALL {
            let rows: Vec<&Measured> = report
                .rows
                .iter()
                .filter(|measured| measured.row.workload == workload && measured.row.link == link)
                .collect();
            if !rows.is_empty() {
                out += &section(workload, link, &rows);
            }
        }
    }
    out += &super::paper::html(report);
    out += &unmeasured(report);
    out + "</body>\n</html>\n"
}

fn machine(report: &Report) -> String {
    let m = &report.machine;
    let mut facts = vec![
        ("processor", format!("{}, {} of them; used: {}", m.cpu, m.cpus, m.cpus_used)),
        ("memory", format!("{} MiB", m.memory_mib)),
        ("system", format!("{}, Linux {}, its sockets with {}", m.system, m.kernel, m.congestion())),
        ("OpenTOE", m.opentoe.clone()),
        ("began", format!("{} UTC, took {}", m.date, text::minutes(report.took))),
        ("rounds", format!("{} of each row, the two stacks turn and turn about", report.rounds)),
    ];
    facts.extend(m.commit.as_ref().map(|commit| ("commit", commit.clone())));
    facts.extend(m.busy_note().map(|note| ("note", note)));
    facts.extend(report.together_note().map(|note| ("side by side", note)));
    facts.extend(m.tools.iter().map(|(tool, version)| (tool.as_str(), version.clone())));
    let mut out = String::from("<dl>\n");
    for (name, value) in facts {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(&value));
    }
    out + "</dl>\n"
}

fn targets(report: &Report) -> String {
    let mut out = String::from(
        "<h2>Targets</h2>\n<div class=\"wide\"><table>\n<tr><th>row</th><th class=\"words\">figure</th>\
         <th>target</th><th>measured</th><th></th></tr>\n",
    );
    for verdict in &report.verdicts {
        let worst = verdict.row.as_ref().filter(|row| **row != verdict.target.row);
        let worst = worst.map(|row| format!(" (worst: {row})")).unwrap_or_default();
        let class = match verdict.reached {
            Some(true) => "pass",
            Some(false) => "short",
            None => "",
        };
        let _ = writeln!(
            out,
            "<tr><td>{}{}</td><td class=\"words\">{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{}</td></tr>",
            escape(&verdict.target.row),
            escape(&worst),
            escape(verdict.target.figure.title()),
            escape(&verdict.target.bound()),
            escape(&verdict.presented()),
            verdict.word()
        );
    }
    out + "</table></div>\n"
}

fn section(workload: Workload, link: Link, rows: &[&Measured]) -> String {
    let mut out = format!(
        "<h2>{}, {}</h2>\n<p class=\"key\"><span><i class=\"linux\"></i>Linux</span>\
         <span><i class=\"toe\"></i>OpenTOE</span></p>\n",
        escape(workload.title()),
        escape(link.title())
    );
    let mut add = |heading: &str, note: &str, plot: Option<String>| {
        if let Some(plot) = plot {
            let _ = writeln!(out, "<h3>{heading}</h3>\n{note}{plot}");
        }
    };
    let kept = "<p class=\"note\">Medians; whiskers from the least to the greatest round.</p>\n";
    add("Rate", kept, figures(rows, Figure::Rate, |m, value| text::rate(&m.row, value)));
    add(
        "Latency",
        "<p class=\"note\">Medians of the percentiles over the rounds, on a logarithmic axis.</p>\n",
        latencies(rows),
    );
    let parts = "<p class=\"key\"><span><i class=\"server\"></i>server</span><span><i class=\"client\"></i>client</span>\
                 <span><i class=\"engine\"></i>engine</span></p>\n<p class=\"note\">Linux above, OpenTOE below.</p>\n";
    add("Processor time of one operation", parts, cpu(rows));
    let kib = |_: &Measured, value: f64| format!("{value:.2} KiB");
    add("Memory of a connection: processes and engine", kept, figures(rows, Figure::ConnectionMemory, kib));
    add("Memory of a connection: the kernel's slabs", kept, figures(rows, Figure::ConnectionSlab, kib));
    out += &table(rows);
    out
}

/// Bars of one figure; `None` when no row has it.
fn figures(
    rows: &[&Measured],
    figure: Figure,
    presented: impl Fn(&Measured, f64) -> String,
) -> Option<String> {
    let bar_row = |measured: &&Measured| {
        let bars = Stack::BOTH.map(|stack| {
            let Some(summary) = measured.summary(stack, figure) else { return Bar::default() };
            let text = presented(measured, summary.median);
            // Memory may shrink, by what others gave back meanwhile.
            Bar { parts: vec![(stack_class(stack), summary.median.max(0.0))], text, spread: Some(summary) }
        });
        let any = bars.iter().any(|bar| !bar.parts.is_empty());
        any.then(|| BarRow { label: measured.row.short_name(), bars })
    };
    let rows: Vec<BarRow> = rows.iter().filter_map(bar_row).collect();
    (!rows.is_empty()).then(|| svg::bars("Linux and OpenTOE, row by row", &rows))
}

fn cpu(rows: &[&Measured]) -> Option<String> {
    let bar_row = |measured: &&Measured| {
        measured.summary(Stack::Linux, Figure::TotalCpu)?;
        let bars = Stack::BOTH.map(|stack| {
            let of = |figure| measured.summary(stack, figure).map_or(0.0, |summary| summary.median);
            let parts = vec![
                ("server", of(Figure::ServerCpu)),
                ("client", of(Figure::ClientCpu)),
                ("engine", of(Figure::EngineCpu)),
            ];
            let mut text = microseconds(of(Figure::TotalCpu));
            if let Some(busy) = measured.summary(stack, Figure::MachineCpu) {
                let _ = write!(text, " (busy: {})", microseconds(busy.median));
            }
            Bar { parts, text, spread: None }
        });
        Some(BarRow { label: measured.row.short_name(), bars })
    };
    let rows: Vec<BarRow> = rows.iter().filter_map(bar_row).collect();
    (!rows.is_empty()).then(|| svg::bars("Processor time of one operation", &rows))
}

fn latencies(rows: &[&Measured]) -> Option<String> {
    let names = [
        ("p50", Figure::P50),
        ("p90", Figure::P90),
        ("p95", Figure::P95),
        ("p99", Figure::P99),
        ("p99.9", Figure::P999),
    ];
    let latency_row = |measured: &&Measured| {
        let points = Stack::BOTH.map(|stack| {
            let point = |(name, figure)| Some((name, measured.summary(stack, figure)?.median));
            names.into_iter().filter_map(point).collect::<Vec<_>>()
        });
        let any = points.iter().any(|points| !points.is_empty());
        any.then(|| LatencyRow { label: measured.row.short_name(), points })
    };
    let rows: Vec<LatencyRow> = rows.iter().filter_map(latency_row).collect();
    (!rows.is_empty()).then(|| svg::latencies("Latency percentiles, row by row", &rows))
}

/// Every figure of each row, both stacks and their ratio.
fn table(rows: &[&Measured]) -> String {
    let columns = [
        ("rate", Figure::Rate),
        ("p50", Figure::P50),
        ("p99", Figure::P99),
        ("server CPU", Figure::ServerCpu),
        ("client CPU", Figure::ClientCpu),
        ("engine CPU", Figure::EngineCpu),
        ("all CPU", Figure::TotalCpu),
        ("busy", Figure::MachineCpu),
        ("thread's CPU", Figure::ThreadCpu),
        ("memory", Figure::Memory),
    ];
    let mut out = String::from("<div class=\"wide\"><table>\n<tr><th>row</th><th class=\"words\">stack</th>");
    columns.iter().for_each(|(name, _)| {
        let _ = write!(out, "<th>{name}</th>");
    });
    out += "</tr>\n";
    for measured in rows {
        for stack in Stack::BOTH {
            let name = if stack == Stack::Linux { measured.row.name() } else { String::new() };
            let _ = write!(out, "<tr><td>{}</td><td class=\"words\">{}</td>", escape(&name), stack.title());
            for (_, figure) in columns {
                let summary = measured.summary(stack, figure);
                let presented = summary.map(|summary| match figure {
                    Figure::Rate => text::rate(&measured.row, summary.median),
                    Figure::Memory => format!("{:.1} MiB", summary.median / 1024.0),
                    _ => microseconds(summary.median),
                });
                let _ = write!(out, "<td>{}</td>", presented.unwrap_or_default());
            }
            out += "</tr>\n";
        }
        out += "<tr><td></td><td class=\"words\">ratio</td>";
        for (_, figure) in columns {
            let ratio = measured.ratio(figure).map(|ratio| format!("{ratio:.2} x"));
            let _ = write!(out, "<td>{}</td>", ratio.unwrap_or_default());
        }
        out += "</tr>\n";
    }
    out + "</table></div>\n"
}

fn unmeasured(report: &Report) -> String {
    if report.unmeasured.is_empty() {
        return String::new();
    }
    let mut out = String::from("<h2>Not measured</h2>\n<ul>\n");
    for row in &report.unmeasured {
        let _ = writeln!(out, "<li>{}: {}</li>", escape(&row.name), escape(&row.why));
    }
    out + "</ul>\n"
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn the_page_has_every_row_and_target_and_needs_nothing_else() {
        let report = report();
        let page = whole(&report);
        for measured in &report.rows {
            assert!(page.contains(&format!("<td>{}</td>", measured.row.name())), "{}", measured.row.name());
        }
        assert_eq!(
            page.matches("<td class=\"pass\">").count() + page.matches("<td class=\"short\">").count(),
            { report.verdicts.iter().filter(|verdict| verdict.reached.is_some()).count() }
        );
        assert!(page.contains("Not measured") && page.contains("no &lt;tool&gt;"));
        for outside in ["http:", "https:", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(page.contains(&report.machine.cpu) && page.contains("prefers-color-scheme: dark"));
    }
}
