//! The rates as bars: plain SVG, in tones that can be read on light and on dark paper.
#![expect(clippy::cast_precision_loss, reason = "places on paper")]

use std::fmt::Write as _;

use super::plan::{Contender, Work};
use super::report::Report;

const WIDTH: f64 = 968.0;
/// Where the panels begin: left of it are the names of the schemes.
const LEFT: f64 = 150.0;
const PANEL: f64 = 385.0;
const BETWEEN: f64 = 20.0;
/// Of a panel, what the longest bar takes; the rest is for its figure.
const BARS: f64 = 325.0;
/// Labels of limits stand on the right of their line up to here, and on its left beyond.
const LABELS_RIGHT_UNTIL: f64 = 280.0;
const TOP: f64 = 92.0;
const BAR: f64 = 13.0;
/// From one bar to the next, and between schemes.
const STEP: f64 = 15.0;
const GAP: f64 = 14.0;
const FOOT: f64 = 58.0;
/// Middle tones.
const INK: &str = "#808790";
const LIMIT: &str = "#d0483e";
const BAR_TONES: [&str; 6] = [
    "#2f8fce", "#d98c1f", "#3aa076", "#b069b8", "#8a8f3c", "#c2617a",
];

/// The whole picture.
pub(super) fn draw(report: &Report<'_>) -> String {
    let plot = Plot::of(report);
    let height = TOP + plot.height() + FOOT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-8 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"{INK}\" role=\"img\">\n\
         <title>Nonces lent per second, by scheme</title>\n"
    );
    plot.legend(&mut svg);
    for (panel, work) in Work::ALL.into_iter().enumerate() {
        plot.panel(&mut svg, panel, work);
    }
    plot.names(&mut svg);
    plot.foot(&mut svg, height);
    svg.push_str("</svg>\n");
    svg
}

/// What is drawn, in order.
struct Plot<'a> {
    report: &'a Report<'a>,
    contenders: Vec<Contender>,
    /// Lanes and processes: one bar each.
    kinds: Vec<(u16, u16)>,
}

impl<'a> Plot<'a> {
    fn of(report: &'a Report<'a>) -> Self {
        let mut contenders = Vec::new();
        let mut kinds = Vec::new();
        for run in &report.runs {
            let setup = run.setup;
            if !contenders.contains(&setup.contender) {
                contenders.push(setup.contender);
            }
            if !kinds.contains(&(setup.lanes, setup.processes)) {
                kinds.push((setup.lanes, setup.processes));
            }
        }
        Self {
            report,
            contenders,
            kinds,
        }
    }

    fn height(&self) -> f64 {
        self.of_group() * self.contenders.len() as f64
    }

    /// One scheme.
    fn of_group(&self) -> f64 {
        STEP * self.kinds.len() as f64 + GAP
    }

    fn top_of(&self, group: usize) -> f64 {
        TOP + self.of_group() * group as f64
    }

    fn legend(&self, svg: &mut String) {
        text(
            svg,
            0.0,
            18.0,
            "font-size=\"15\" font-weight=\"600\"",
            "Nonces lent per second",
        );
        let mut x = 0.0;
        for (number, (lanes, processes)) in self.kinds.iter().enumerate() {
            let label = format!("{}, {}", many(*lanes, "lane"), many(*processes, "process"));
            rect(svg, x, 33.0, 12.0, number);
            text(svg, x + 18.0, 44.0, "", &label);
            x += 42.0 + 6.3 * label.len() as f64;
        }
    }

    fn names(&self, svg: &mut String) {
        for (group, contender) in self.contenders.iter().enumerate() {
            let y = self.top_of(group) + STEP * self.kinds.len() as f64 / 2.0 + 4.0;
            let right = "text-anchor=\"end\" font-weight=\"600\"";
            text(svg, LEFT - 10.0, y, right, contender.name());
        }
    }

    /// All bars of one kind of work.
    fn panel(&self, svg: &mut String, panel: usize, work: Work) {
        let left = LEFT + (PANEL + BETWEEN) * panel as f64;
        let heading = match work {
            Work::Allocate => "allocate alone",
            Work::Cycle => "allocate, submitted, used",
        };
        text(svg, left, TOP - 26.0, "font-weight=\"600\"", heading);
        let scale = BARS / self.most(work);
        for (group, contender) in self.contenders.iter().enumerate() {
            for (number, (lanes, processes)) in self.kinds.iter().enumerate() {
                let Some(rate) = self.report.rate(*contender, *lanes, *processes, work) else {
                    continue;
                };
                let y = self.top_of(group) + STEP * number as f64;
                rect(svg, left, y, (rate * scale).max(1.0), number);
                let end = left + rate * scale + 5.0;
                text(svg, end, y + 11.0, "font-size=\"11\"", &thousands(rate));
            }
        }
        for (lanes, limit) in &self.report.limits.row_lock {
            let x = left + limit.mean() * scale;
            let label = format!("pgbench, {}", many(*lanes, "row"));
            self.limit_line(svg, (left, x), &label, *lanes);
        }
    }

    /// The longest bar or limit of row locks. (INCR is said below: it would squeeze the rest.)
    fn most(&self, work: Work) -> f64 {
        let runs = self.report.runs.iter();
        let rates = runs
            .filter(|run| run.setup.work == work)
            .map(|run| run.per_second());
        let limits = self
            .report
            .limits
            .row_lock
            .iter()
            .map(|(_, limit)| limit.mean());
        rates.chain(limits).fold(1.0, f64::max)
    }

    fn limit_line(&self, svg: &mut String, (left, x): (f64, f64), label: &str, lanes: u16) {
        // Labels of neighbours stand on two lines.
        let is_first = self
            .report
            .limits
            .row_lock
            .first()
            .is_some_and(|(of, _)| *of == lanes);
        let y = if is_first { TOP - 13.0 } else { TOP - 2.0 };
        let bottom = TOP + self.height() - GAP + 2.0;
        drawn(writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"{LIMIT}\" \
             stroke-dasharray=\"3 3\"/>",
            y + 2.0
        ));
        // Not over the edge of the panel.
        let (x, anchor) = match x > left + LABELS_RIGHT_UNTIL {
            true => (x - 3.0, "end"),
            false => (x + 3.0, "start"),
        };
        let style = format!("font-size=\"10\" fill=\"{LIMIT}\" text-anchor=\"{anchor}\"");
        text(svg, x, y, &style, label);
    }

    fn foot(&self, svg: &mut String, height: f64) {
        let limits = &self.report.limits;
        let row_lock: Vec<String> = (limits.row_lock.iter())
            .map(|(lanes, limit)| format!("{} on {}", thousands(limit.mean()), many(*lanes, "row")))
            .collect();
        let first = format!(
            "Limits of the same run, 64 clients: pgbench, row lock and insert, {} a second; redis-benchmark INCR, {} \
             a second.",
            row_lock.join(", "),
            thousands(limits.incr.mean())
        );
        let second = format!(
            "{} clients in all, each waits for its answer; the component is called in process.",
            self.report.args.clients
        );
        text(svg, 0.0, height - 28.0, "font-size=\"11\"", &first);
        text(svg, 0.0, height - 12.0, "font-size=\"11\"", &second);
    }
}

fn rect(svg: &mut String, x: f64, y: f64, width: f64, number: usize) {
    let tone = BAR_TONES[number % BAR_TONES.len()];
    drawn(writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\" fill=\"{tone}\"/>"
    ));
}

fn text(svg: &mut String, x: f64, y: f64, style: &str, words: &str) {
    drawn(writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{words}</text>"
    ));
}

fn drawn(written: std::fmt::Result) {
    written.expect("a String takes all that is written");
}

fn many(count: u16, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (_, "process") => format!("{count} processes"),
        (_, _) => format!("{count} {what}s"),
    }
}

/// 12,345
fn thousands(rate: f64) -> String {
    let digits = format!("{rate:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_grouped_and_words_are_in_the_right_number() {
        assert_eq!(thousands(7.4), "7");
        assert_eq!(thousands(999.6), "1,000");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
        assert_eq!(many(1, "process"), "1 process");
        assert_eq!(many(3, "process"), "3 processes");
        assert_eq!(many(100, "lane"), "100 lanes");
    }
}
