//! The tables of a run.

use super::plot::plot;
use super::works::{Kind, Peer, Work};
use super::{Reply, own};
use rusty_benches::kernels::{Bounds, Peak};
use rusty_benches::{machine, middle};
use std::fmt::Write;
use std::path::Path;

/// What was found about a work.
pub struct Row {
    pub work: Work,
    /// Bytes that a step of Rusty's reads, and of the peer's where it says so, and operations of a step's products.
    bytes: (u64, u64),
    operations: u64,
    /// Bytes of keys and values.
    kv: u64,
    own: Vec<f64>,
    peer: Vec<f64>,
    /// Each side's best repetition of all rounds.
    best: Option<(f64, f64)>,
}

impl Row {
    pub fn new(work: &Work) -> Self {
        Self {
            work: *work,
            bytes: (0, 0),
            operations: 0,
            kv: 0,
            own: vec![],
            peer: vec![],
            best: None,
        }
    }

    /// Adds a round.
    pub fn add(&mut self, own: &Reply, peer: &Reply) {
        self.own.push(own.middle());
        self.peer.push(peer.middle());
        let best = |reply: &Reply, before: Option<f64>| {
            let all = reply.samples.iter().copied().chain(before);
            match self.work.kind {
                Kind::Opening | Kind::Memory => all.fold(f64::INFINITY, f64::min),
                Kind::Answer | Kind::Speed => all.fold(0.0, f64::max),
            }
        };
        self.best = Some((
            best(own, self.best.map(|b| b.0)),
            best(peer, self.best.map(|b| b.1)),
        ));
        self.bytes = (own.bytes, peer.bytes);
        self.operations = own.operations;
        self.kv = own.kv;
    }

    /// The middle of the rounds' ratios.
    pub fn ratio(&self) -> f64 {
        middle(
            self.own
                .iter()
                .zip(&self.peer)
                .map(|(a, b)| a / b)
                .collect(),
        )
    }

    /// Whether no round counted.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// The ratio of each side's best repetition.
    fn best_ratio(&self) -> f64 {
        self.best.map_or(f64::NAN, |(own, peer)| own / peer)
    }

    fn own(&self) -> f64 {
        middle(self.own.clone())
    }

    fn peer(&self) -> f64 {
        middle(self.peer.clone())
    }

    fn is_memory(&self) -> bool {
        self.work.kind == Kind::Memory
    }

    /// Rusty's steps per second; none where no speed is measured.
    fn steps(&self) -> Option<f64> {
        let rows = self.work.prompt.max(self.work.batch) as f64;
        (self.work.kind == Kind::Speed).then(|| self.own() / rows)
    }
}

/// A run.
pub struct Report {
    pub rows: Vec<Row>,
    /// What the machine reached after each work.
    pub bounds: Vec<Bounds>,
    threads: usize,
    rounds: usize,
    /// GB/s without which no round of works counts that memory bounds.
    quiet: Option<f64>,
}

impl Report {
    pub fn new(threads: usize, rounds: usize, quiet: Option<f64>) -> Self {
        Self {
            rows: vec![],
            bounds: vec![],
            threads,
            rounds,
            quiet,
        }
    }

    fn bandwidth(&self) -> f64 {
        middle(self.bounds.iter().map(|b| b.bandwidth).collect())
    }

    /// Operations per second of some kind; none where that is not known.
    fn peak(&self, kind: fn(Peak) -> f64) -> Option<f64> {
        let peaks = self.bounds.iter().map(|b| b.peak.map(kind));
        Some(middle(peaks.collect::<Option<Vec<f64>>>()?))
    }

    /// The part of a step's time that its bytes or its operations take at least, whichever is longer.
    pub fn fraction(&self, row: &Row) -> Option<f64> {
        let bytes = row.bytes.0 as f64 / self.bandwidth();
        let peak = match row.work.is_float() {
            true => self.peak(|p| p.brains),
            false => self.peak(|p| p.bytes),
        };
        let operations = peak.map_or(0.0, |peak| row.operations as f64 / peak);
        Some(row.steps()? * bytes.max(operations))
    }

    pub fn table(&self) -> String {
        let mut out = self.head();
        out += "| work | Rusty (tok/s) | peer (tok/s) | ratio | of the best | least | aim | fraction of roofline |\n";
        out += "|---|---|---|---|---|---|---|---|\n";
        for row in self.rows.iter().filter(|row| !row.is_memory()) {
            let work = &row.work;
            let fraction = self.fraction(row);
            let at_most = match work.kind {
                Kind::Opening => "at most ",
                _ => "",
            };
            let _ = writeln!(
                out,
                "| {} | {} | {} | {:.2} | {:.2} | {at_most}{} | {at_most}{} | {} |",
                work.name(),
                work.figure(row.own()),
                work.figure(row.peer()),
                row.ratio(),
                row.best_ratio(),
                work.least,
                work.aim,
                fraction.map_or(String::new(), |f| format!("{:.0}%", 100.0 * f)),
            );
        }
        out + &self.memory() + &self.arithmetic()
    }

    fn head(&self) -> String {
        let bandwidths = || self.bounds.iter().map(|b| b.bandwidth / 1e9);
        let tera = |kind| self.peak(kind).map(|peak| peak / 1e12);
        let peaks = (tera(|p| p.floats), tera(|p| p.brains), tera(|p| p.bytes));
        let peaks = match peaks {
            (Some(floats), Some(brains), Some(bytes)) => format!(
                ", and a loop in registers does {floats:.2} T operations per second on floats, {brains:.2} T on BF16, {bytes:.2} T on bytes"
            ),
            _ => String::new(),
        };
        let quiet = self.quiet.map_or(String::new(), |least| {
            format!(
                " Sides of works that decode one sequence at no depth, but for those beside PyTorch, count while memory is read at {least} \
                 GB/s or more before them and behind them; rounds that waited too long for it are left out."
            )
        });
        format!(
            "# Rusty beside its peers, {}\n\n\
             {}, {} threads; commit {}. `cargo bench -p benches --bench peers`: random weights of real shapes, \
             {} rounds in turn, f16 keys and values, llama.cpp built for this machine but without AMX; each figure is \
             the middle of its rounds, the ratio the middle of the rounds' ratios; that of the best is of each side's fastest \
             repetition, which other guests of a shared machine disturbed least. The peer is llama.cpp where none is \
             named; that of an adapter (rank 16, f16, all linear layers but the head) is Rusty without it. Opening is of \
             a file in the page cache and has a prompt of 32 tokens. Measured after each work: memory is read at {:.1} \
             GB/s ({:.1} to {:.1}){peaks}. The fraction of the roofline is what a step's bytes or products take at \
             least, whichever is longer, of the time that it took; attention's products are not counted.{quiet}\n\n",
            machine::now(),
            machine::cpu(),
            self.threads,
            machine::commit(),
            self.rounds,
            self.bandwidth() / 1e9,
            bandwidths().fold(f64::INFINITY, f64::min),
            bandwidths().fold(0.0, f64::max),
        )
    }

    /// What processes take beside weights.
    fn memory(&self) -> String {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| row.is_memory()).collect();
        if rows.is_empty() {
            return String::new();
        }
        let mut out = format!(
            "\nMost bytes ever resident (`VmHWM`) less those of mapped files (`RssFile`) and of repacked weights, in MB; \
             prompt and generated tokens nearly fill a context of {} tokens. llama.cpp's repacked weights are taken to \
             be all of them, and what its Python held before is left out.\n\n",
            own::context(rows[0].work.prompt + rows[0].work.generate),
        );
        out += "| work | Rusty | peer | at most | Rusty without keys and values | peer | aim |\n";
        out += "|---|---|---|---|---|---|---|\n";
        for row in rows {
            let (own, peer) = (row.own(), row.peer());
            let kv = row.kv as f64 / 1e6;
            let _ = writeln!(
                out,
                "| {} | {own:.0} | {peer:.0} | {} | {:.0} | {:.0} | {} |",
                row.work.name(),
                row.work.least,
                own - kv,
                peer - kv,
                row.work.aim,
            );
        }
        out
    }

    /// What bytes allow beside PyTorch, whose weights have more of them.
    fn arithmetic(&self) -> String {
        let mut out = String::new();
        for row in &self.rows {
            let Peer::PyTorch(precision) = row.work.peer else {
                continue;
            };
            let (own, peer) = (row.bytes.0 as f64, row.bytes.1 as f64);
            let most = self.bandwidth() / own / row.peer();
            let forbids = match most < row.work.least {
                true => format!(": bytes forbid {}", row.work.least),
                false => String::new(),
            };
            let _ = writeln!(
                out,
                "\nPyTorch reads {:.0} MB of {precision} for each token, {:.1} GB/s, and Rusty {:.0} MB of {}. Where both \
                 read at the measured {:.1} GB/s Rusty is {:.1} times as fast; beside PyTorch as it ran it can be {most:.1} \
                 times as fast at most{forbids}.",
                peer / 1e6,
                row.peer() * peer / 1e9,
                own / 1e6,
                row.work.format,
                self.bandwidth() / 1e9,
                peer / own,
            );
        }
        out
    }

    /// Writes `peers.md` and `peers.svg`.
    pub fn save(&self, folder: &Path) {
        std::fs::write(folder.join("peers.md"), self.table()).expect("the table");
        std::fs::write(folder.join("peers.svg"), plot(self)).expect("the plot");
    }
}
