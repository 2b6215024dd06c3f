//! The plot of a run.

use super::report::{Report, Row};
use super::works::Kind;
use std::fmt::Write;

/// Height of a work's line.
const LINE: usize = 24;
/// Where ratios begin, and the length of the largest.
const LEFT: f64 = 250.0;
const WIDTH: f64 = 390.0;
/// Where fractions of the roofline begin, and the length of the whole.
const ROOF: f64 = 690.0;
const WHOLE: f64 = 70.0;
/// PyTorch's ratios would hide the others'.
const LARGEST: f64 = 5.0;

/// Bars: ratios to the peer, with a line at each work's least ratio (most, of times) and at its aim, and thin ones for
/// fractions of the roofline.
pub fn plot(report: &Report) -> String {
    let rows: Vec<&Row> = report
        .rows
        .iter()
        .filter(|row| row.work.kind != Kind::Memory)
        .collect();
    let largest = rows.iter().map(|row| longest(row)).fold(1.0, f64::max);
    let scale = WIDTH / largest.min(LARGEST);
    let height = LINE * (rows.len() + 2);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"8\" y=\"16\">Speed in units \
         of the peer's (llama.cpp; PyTorch where named; with an adapter: without), of opening time</text>\n<text x=\"8\" \
         y=\"34\">Marks: asked for and aimed at; grey: the peer</text>\n<text x=\"{ROOF}\" y=\"34\">of the \
         roofline</text>\n"
    );
    for (i, row) in rows.iter().enumerate() {
        let top = 40 + LINE * i;
        out += &ratio(row, top, scale);
        if let Some(fraction) = report.fraction(row) {
            out += &roof(fraction, top);
        }
    }
    out + "</svg>\n"
}

/// The largest of a row's ratio and its marks.
fn longest(row: &Row) -> f64 {
    row.ratio().max(row.work.least).max(row.work.aim)
}

/// A row's name, ratio and marks.
fn ratio(row: &Row, top: usize, scale: f64) -> String {
    let long = |ratio: f64| scale * ratio.min(WIDTH / scale);
    let (work, ratio) = (&row.work, row.ratio());
    let colour = match work.is_met(ratio) {
        true => "#2a7f62",
        false => "#b5533c",
    };
    let mut out = text(8.0, top, &work.name());
    out += &bar(LEFT, long(ratio), top + 3, 14, colour);
    out += &bar(LEFT, long(1.0), top + 17, 3, "#999");
    for mark in [work.least, work.aim] {
        let _ = writeln!(
            out,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1}\" y2=\"{2}\" stroke=\"black\"/>",
            LEFT + long(mark),
            top + 1,
            top + 21
        );
    }
    let end = LEFT + long(longest(row).max(1.0)) + 6.0;
    out + &text(end, top, &format!("{ratio:.2}"))
}

/// A fraction of the roofline beside the whole.
fn roof(fraction: f64, top: usize) -> String {
    let mut out = bar(ROOF, WHOLE, top + 9, 4, "#ddd");
    out += &bar(ROOF, WHOLE * fraction.min(1.0), top + 9, 4, "#3b6ea5");
    let percent = format!("{:.0}%", 100.0 * fraction);
    out + &text(ROOF + WHOLE + 6.0, top, &percent)
}

fn text(left: f64, top: usize, text: &str) -> String {
    let base = top + 15;
    format!("<text x=\"{left:.1}\" y=\"{base}\">{text}</text>\n")
}

fn bar(left: f64, width: f64, top: usize, height: usize, colour: &str) -> String {
    format!(
        "<rect x=\"{left}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"/>\n"
    )
}
