//! The rates as a bar chart: plain SVG, in colours for light and dark backgrounds.
#![expect(clippy::cast_precision_loss, reason = "coordinates of a drawing")]

use std::fmt::Write as _;

use super::report::Report;
use super::setup::{Contender, Work};

const WIDTH: f64 = 968.0;
/// The left edge of the panels; the names of the schemes are to the left of it.
const LEFT: f64 = 150.0;
const PANEL: f64 = 385.0;
const BETWEEN: f64 = 20.0;
/// The longest bar of a panel; the rest of the width is for its number.
const BARS: f64 = 325.0;
/// Limit lines up to here have their label on the right, the others on the left.
const LABELS_RIGHT_UNTIL: f64 = 280.0;
const TOP: f64 = 92.0;
const BAR: f64 = 13.0;
/// The distance between bars, and between schemes.
const STEP: f64 = 15.0;
const GAP: f64 = 14.0;
const FOOT: f64 = 58.0;
const INK: &str = "#808790";
const LIMIT: &str = "#d0483e";
const BAR_TONES: [&str; 6] = [
    "#2f8fce", "#d98c1f", "#3aa076", "#b069b8", "#8a8f3c", "#c2617a",
];

/// Draws the chart.
pub(super) fn draw(report: &Report<'_>) -> String {
    let plot = Plot::new(report);
    let height = TOP + plot.height() + FOOT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-8 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"{INK}\" role=\"img\">\n\
         <title>Nonces reserved per second, by scheme</title>\n"
    );
    plot.draw_legend(&mut svg);
    for (panel, work) in Work::ALL.into_iter().enumerate() {
        plot.draw_panel(&mut svg, panel, work);
    }
    plot.draw_names(&mut svg);
    plot.draw_footer(&mut svg, height);
    svg.push_str("</svg>\n");
    svg
}

struct Plot<'a> {
    report: &'a Report<'a>,
    contenders: Vec<Contender>,
    /// Pairs of lanes and processes: one bar each.
    kinds: Vec<(u16, u16)>,
}

impl<'a> Plot<'a> {
    fn new(report: &'a Report<'a>) -> Self {
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
        self.group_height() * self.contenders.len() as f64
    }

    fn group_height(&self) -> f64 {
        STEP * self.kinds.len() as f64 + GAP
    }

    fn group_top(&self, group: usize) -> f64 {
        TOP + self.group_height() * group as f64
    }

    fn draw_legend(&self, svg: &mut String) {
        draw_text(
            svg,
            0.0,
            18.0,
            "font-size=\"15\" font-weight=\"600\"",
            "Nonces reserved per second",
        );
        let mut x = 0.0;
        for (number, (lanes, processes)) in self.kinds.iter().enumerate() {
            let label = format!(
                "{}, {}",
                count_noun(*lanes, "lane"),
                count_noun(*processes, "process")
            );
            draw_bar(svg, x, 33.0, 12.0, number);
            draw_text(svg, x + 18.0, 44.0, "", &label);
            x += 42.0 + 6.3 * label.len() as f64;
        }
    }

    fn draw_names(&self, svg: &mut String) {
        for (group, contender) in self.contenders.iter().enumerate() {
            let y = self.group_top(group) + STEP * self.kinds.len() as f64 / 2.0 + 4.0;
            let right = "text-anchor=\"end\" font-weight=\"600\"";
            draw_text(svg, LEFT - 10.0, y, right, contender.name());
        }
    }

    /// Draws all bars of one kind of work.
    fn draw_panel(&self, svg: &mut String, panel: usize, work: Work) {
        let left = LEFT + (PANEL + BETWEEN) * panel as f64;
        let heading = match work {
            Work::Allocate => "allocate alone",
            Work::Cycle => "allocate, submitted, used",
        };
        draw_text(svg, left, TOP - 26.0, "font-weight=\"600\"", heading);
        let scale = BARS / self.highest_rate(work);
        for (group, contender) in self.contenders.iter().enumerate() {
            for (number, (lanes, processes)) in self.kinds.iter().enumerate() {
                let Some(rate) = self.report.rate(*contender, *lanes, *processes, work) else {
                    continue;
                };
                let y = self.group_top(group) + STEP * number as f64;
                draw_bar(svg, left, y, (rate * scale).max(1.0), number);
                let end = left + rate * scale + 5.0;
                draw_text(svg, end, y + 11.0, "font-size=\"11\"", &group_digits(rate));
            }
        }
        for (lanes, limit) in &self.report.limits.row_lock {
            let x = left + limit.mean() * scale;
            let label = format!("pgbench, {}", count_noun(*lanes, "row"));
            self.draw_limit(svg, (left, x), &label, *lanes);
        }
    }

    /// The highest rate or row-lock limit. (INCR is in the footer: its line would shrink all bars.)
    fn highest_rate(&self, work: Work) -> f64 {
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

    fn draw_limit(&self, svg: &mut String, (left, x): (f64, f64), label: &str, lanes: u16) {
        // Labels of neighbouring lines are at two heights.
        let is_first = self
            .report
            .limits
            .row_lock
            .first()
            .is_some_and(|(of, _)| *of == lanes);
        let y = if is_first { TOP - 13.0 } else { TOP - 2.0 };
        let bottom = TOP + self.height() - GAP + 2.0;
        expect_written(writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"{LIMIT}\" \
             stroke-dasharray=\"3 3\"/>",
            y + 2.0
        ));
        // The label must not cross the edge of the panel.
        let (x, anchor) = match x > left + LABELS_RIGHT_UNTIL {
            true => (x - 3.0, "end"),
            false => (x + 3.0, "start"),
        };
        let style = format!("font-size=\"10\" fill=\"{LIMIT}\" text-anchor=\"{anchor}\"");
        draw_text(svg, x, y, &style, label);
    }

    fn draw_footer(&self, svg: &mut String, height: f64) {
        let limits = &self.report.limits;
        let row_lock: Vec<String> = (limits.row_lock.iter())
            .map(|(lanes, limit)| {
                format!(
                    "{} on {}",
                    group_digits(limit.mean()),
                    count_noun(*lanes, "row")
                )
            })
            .collect();
        let first = format!(
            "Limits of the same run, 64 clients: pgbench, row lock and insert, {} a second; redis-benchmark INCR, {} \
             a second.",
            row_lock.join(", "),
            group_digits(limits.incr.mean())
        );
        let second = format!(
            "{} clients in total, each waits for its answer; the component is called in process.",
            self.report.args.clients
        );
        draw_text(svg, 0.0, height - 28.0, "font-size=\"11\"", &first);
        draw_text(svg, 0.0, height - 12.0, "font-size=\"11\"", &second);
    }
}

fn draw_bar(svg: &mut String, x: f64, y: f64, width: f64, number: usize) {
    let tone = BAR_TONES[number % BAR_TONES.len()];
    expect_written(writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\" fill=\"{tone}\"/>"
    ));
}

fn draw_text(svg: &mut String, x: f64, y: f64, style: &str, content: &str) {
    expect_written(writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{content}</text>"
    ));
}

fn expect_written(result: std::fmt::Result) {
    result.expect("writing to a String does not fail");
}

fn count_noun(count: u16, noun: &str) -> String {
    match (count, noun) {
        (1, _) => format!("1 {noun}"),
        (_, "process") => format!("{count} processes"),
        (_, _) => format!("{count} {noun}s"),
    }
}

/// 12,345
fn group_digits(rate: f64) -> String {
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
    fn digits_are_grouped_and_nouns_have_the_right_number() {
        assert_eq!(group_digits(7.4), "7");
        assert_eq!(group_digits(999.6), "1,000");
        assert_eq!(group_digits(1_234_567.0), "1,234,567");
        assert_eq!(count_noun(1, "process"), "1 process");
        assert_eq!(count_noun(3, "process"), "3 processes");
        assert_eq!(count_noun(100, "lane"), "100 lanes");
    }
}
