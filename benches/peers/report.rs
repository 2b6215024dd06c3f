//! The table and the plot of a run.

use super::{Reply, Work};
use rusty_benches::{machine, middle};
use std::fmt::Write;
use std::path::Path;

/// What was found about a work.
pub struct Row {
    work: Work,
    /// Bytes of weights as Rusty holds them, which a step reads.
    bytes: u64,
    own: Vec<f64>,
    peer: Vec<f64>,
    anonymous: (u64, u64),
}

impl Row {
    pub fn new(work: &Work) -> Self {
        Self {
            work: *work,
            bytes: 0,
            own: vec![],
            peer: vec![],
            anonymous: (0, 0),
        }
    }

    /// Adds a round.
    pub fn add(&mut self, own: &Reply, peer: &Reply) {
        self.own.push(own.rate());
        self.peer.push(peer.rate());
        self.anonymous = (own.anonymous, peer.anonymous);
        self.bytes = own.weights;
    }

    /// The middle of the rounds' ratios.
    fn ratio(&self) -> f64 {
        middle(
            self.own
                .iter()
                .zip(&self.peer)
                .map(|(a, b)| a / b)
                .collect(),
        )
    }

    /// Bytes of weights per second while one token at a time is decoded.
    fn stream(&self) -> Option<f64> {
        let steps = middle(self.own.clone()) / self.work.batch as f64;
        (self.work.prompt == 0 && self.work.depth == 0).then_some(steps * self.bytes as f64)
    }
}

/// A run.
pub struct Report {
    pub rows: Vec<Row>,
    threads: usize,
    rounds: usize,
    bandwidths: Vec<f64>,
}

impl Report {
    pub fn new(threads: usize, rounds: usize) -> Self {
        Self {
            rows: vec![],
            threads,
            rounds,
            bandwidths: vec![],
        }
    }

    /// Adds a measured bandwidth.
    pub fn bandwidth(&mut self, bytes_per_second: f64) {
        self.bandwidths.push(bytes_per_second);
    }

    pub fn table(&self) -> String {
        let bandwidth = middle(self.bandwidths.clone());
        let least = self
            .bandwidths
            .iter()
            .copied()
            .fold(f64::INFINITY, f64::min);
        let most = self.bandwidths.iter().copied().fold(0.0, f64::max);
        let mut out = String::new();
        let _ = writeln!(out, "# Rusty beside its peers, {}\n", machine::now());
        let _ = writeln!(
            out,
            "{}, {} threads; commit {}. `cargo bench -p rusty-benches --bench peers`: random weights of real shapes, \
             {} rounds in turn, f16 keys and values, llama.cpp built for this machine but without AMX; each figure is \
             the middle of its rounds, the ratio the middle of the rounds' ratios. Read bandwidth, measured after each work: {:.1} GB/s ({:.1} to {:.1}).\n",
            machine::cpu(),
            self.threads,
            machine::commit(),
            self.rounds,
            bandwidth / 1e9,
            least / 1e9,
            most / 1e9,
        );
        out += "| work | Rusty (tok/s) | peer | ratio | least | aim | share of bandwidth | memory beside weights (MB) |\n";
        out += "|---|---|---|---|---|---|---|---|\n";
        for row in &self.rows {
            let share = row
                .stream()
                .map_or(String::new(), |s| format!("{:.0}%", 100.0 * s / bandwidth));
            let _ = writeln!(
                out,
                "| {} | {:.1} | {:.1} | {:.2} | {} | {} | {share} | {} |",
                row.work.name(),
                middle(row.own.clone()),
                middle(row.peer.clone()),
                row.ratio(),
                row.work.least,
                row.work.aim,
                row.anonymous.0 / 1_000_000,
            );
        }
        out
    }

    /// Writes `peers.md` and `peers.svg`.
    pub fn save(&self, folder: &Path) {
        std::fs::write(folder.join("peers.md"), self.table()).expect("the table");
        std::fs::write(folder.join("peers.svg"), self.plot()).expect("the plot");
    }

    /// Bars: Rusty's speed in units of the peer's; a line at each work's least ratio and at its aim.
    fn plot(&self) -> String {
        const LINE: usize = 24;
        const LEFT: f64 = 260.0;
        const WIDTH: f64 = 460.0;
        let most = |r: &Row| r.ratio().max(r.work.aim);
        // PyTorch's ratios would hide the others'.
        let cap = self.rows.iter().map(most).fold(1.0, f64::max).min(5.0);
        let x = |ratio: f64| LEFT + WIDTH * ratio.min(cap) / cap;
        let height = LINE * (self.rows.len() + 2);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"{height}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"8\" y=\"16\">Speed in units \
             of the peer's (llama.cpp; PyTorch where named); marks: least and aim; grey: the peer</text>\n"
        );
        for (i, row) in self.rows.iter().enumerate() {
            let (top, ratio) = (LINE * (i + 1), row.ratio());
            let colour = if ratio >= row.work.least {
                "#2a7f62"
            } else {
                "#b5533c"
            };
            let _ = writeln!(
                out,
                "<text x=\"8\" y=\"{}\">{}</text>",
                top + 15,
                row.work.name()
            );
            let mut bar = |to: f64, top: usize, height: usize, colour: &str| {
                let _ = writeln!(
                    out,
                    "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{:.1}\" height=\"{height}\" fill=\"{colour}\"/>",
                    x(to) - LEFT
                );
            };
            bar(ratio, top + 3, 14, colour);
            bar(1.0, top + 17, 3, "#999");
            for mark in [row.work.least, row.work.aim] {
                let _ = writeln!(
                    out,
                    "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1}\" y2=\"{2}\" stroke=\"black\"/>",
                    x(mark),
                    top + 1,
                    top + 21
                );
            }
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{}\">{ratio:.2}</text>",
                x(ratio.max(row.work.aim)) + 6.0,
                top + 15
            );
        }
        out + "</svg>\n"
    }
}
