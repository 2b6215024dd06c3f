//! A curve: its points, what bounds them, its table and its plot.

use rusty_benches::kernels::{Bounds, Peak};
use std::fmt::Write;

/// What a token needs, on average over a step's.
#[derive(Clone, Copy)]
pub struct Need {
    /// Bytes of weights, keys and values.
    pub bytes: f64,
    /// Operations of products with weights.
    pub products: f64,
    /// Operations of attention.
    pub attention: f64,
}

impl Need {
    /// Tokens per second that a machine allows. Products are of bytes, attention of single precision; rates that are not known do not
    /// bound.
    fn allowed(&self, bounds: &Bounds) -> f64 {
        let of = |peak: Peak| self.products / peak.bytes + self.attention / peak.floats;
        let operations = bounds.peak.map_or(0.0, of);
        1.0 / operations.max(self.bytes / bounds.bandwidth)
    }
}

/// A point of a curve.
pub struct Point {
    pub x: usize,
    /// Tokens per second, all sequences together.
    pub rate: f64,
    pub need: Need,
}

/// Speed over one quantity.
pub struct Curve {
    pub name: String,
    pub quantity: &'static str,
    pub points: Vec<Point>,
}

impl Curve {
    /// Its table.
    pub fn table(&self, bounds: &Bounds) -> String {
        let mut out = format!("## {}\n\n", capital(&self.name));
        let _ = writeln!(
            out,
            "| {} | tok/s | bound | share of it |\n|---|---|---|---|",
            self.quantity
        );
        for p in &self.points {
            let bound = p.need.allowed(bounds);
            let share = 100.0 * p.rate / bound;
            let _ = writeln!(
                out,
                "| {} | {:.1} | {bound:.1} | {share:.0}% |",
                p.x, p.rate
            );
        }
        out + "\n"
    }

    /// Its plot, `TALL` high from `top` on: the quantity in doublings, speed from 0 up.
    fn plot(&self, top: f64) -> String {
        const COLOUR: &str = "#2a7f62";
        let most = self.points.iter().map(|p| p.rate).fold(1.0, f64::max);
        let place = |x: usize| ((x.max(1)) as f64).log2();
        let (from, to) = (
            place(self.points[0].x),
            place(self.points[self.points.len() - 1].x),
        );
        // A depth of 0 stands one doubling before the next point.
        let from = if self.points[0].x == 0 {
            place(self.points[1].x) - 1.0
        } else {
            from
        };
        let at = |p: &Point| {
            let x = if p.x == 0 { from } else { place(p.x) };
            (
                60.0 + 700.0 * (x - from) / (to - from),
                top + 150.0 - 120.0 * p.rate / most,
            )
        };
        let mut out = format!(
            "<text x=\"8\" y=\"{}\">{}, tok/s</text>\n",
            top + 14.0,
            capital(&self.name)
        );
        let line: Vec<String> = self
            .points
            .iter()
            .map(|p| {
                let (x, y) = at(p);
                format!("{x:.1},{y:.1}")
            })
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{COLOUR}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        for p in &self.points {
            let (x, y) = at(p);
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{COLOUR}\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\">{:.0}</text><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">{}</text>",
                y - 6.0,
                p.rate,
                top + 168.0,
                p.x
            );
        }
        out
    }
}

/// Height of a curve's plot.
const TALL: f64 = 185.0;

/// The plots of all curves below each other.
pub fn plot(curves: &[Curve]) -> String {
    let height = TALL * curves.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (i, curve) in curves.iter().enumerate() {
        out += &curve.plot(TALL * i as f64);
    }
    out + "</svg>\n"
}

fn capital(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}
