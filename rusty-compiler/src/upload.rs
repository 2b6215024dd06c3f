//! How fast weights come to a device.
//!
//! The host hands bytes over faster than they travel, and goes on while they do, so its own time says little. The clock
//! runs from the first byte that is handed over until the device is known to have all of them, which is where somebody
//! waits for it anyway, or once at the end. What runs on the device meanwhile counts too: a first step of many rows
//! makes the rate look lower than it is.

use std::time::{Duration, Instant};

/// Weights that came from the host to stay on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upload {
    /// Bytes that the device has.
    pub bytes: u64,
    /// Time in which some of them were on their way.
    pub took: Duration,
}

impl Upload {
    /// Billions of bytes per second, at least; none where nothing came.
    pub fn gb_per_s(&self) -> Option<f64> {
        let seconds = self.took.as_secs_f64();
        (self.bytes > 0 && seconds > 0.0).then(|| self.bytes as f64 / seconds / 1e9)
    }
}

/// Measures an [`Upload`].
#[derive(Debug, Default)]
pub(crate) struct UploadClock {
    done: Upload,
    /// Bytes that are on their way, and since when.
    under_way: Option<(u64, Instant)>,
}

impl UploadClock {
    /// Counts bytes that the host began to hand over at `start`.
    pub fn add(&mut self, bytes: u64, start: Instant) {
        if bytes > 0 {
            self.under_way.get_or_insert((0, start)).0 += bytes;
        }
    }

    /// Whether the device may not have all that was handed over.
    pub fn runs(&self) -> bool {
        self.under_way.is_some()
    }

    /// Stops: the device has all.
    pub fn stop(&mut self) {
        if let Some((bytes, since)) = self.under_way.take() {
            self.done.bytes += bytes;
            self.done.took += since.elapsed();
        }
    }

    /// What the device has.
    pub fn done(&self) -> Upload {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_while_bytes_are_on_their_way() {
        let mut clock = UploadClock::default();
        clock.add(0, Instant::now());
        assert!(!clock.runs(), "nothing to wait for");
        let start = Instant::now();
        clock.add(3, start);
        std::thread::sleep(Duration::from_millis(2));
        clock.add(4, Instant::now());
        assert_eq!(clock.done(), Upload::default(), "not there yet");
        clock.stop();
        let first = clock.done();
        assert_eq!(first.bytes, 7);
        assert!(first.took >= Duration::from_millis(2) && first.took <= start.elapsed());
        // What passes until more comes does not count.
        std::thread::sleep(Duration::from_millis(2));
        clock.stop();
        assert_eq!((clock.done(), clock.runs()), (first, false));
    }

    #[test]
    fn a_rate_is_told_where_there_is_one() {
        let upload = |bytes, millis| Upload {
            bytes,
            took: Duration::from_millis(millis),
        };
        assert_eq!(upload(0, 5).gb_per_s(), None);
        let rate = upload(2_000_000, 4).gb_per_s();
        assert!(rate.is_some_and(|rate| (rate - 0.5).abs() < 1e-9));
    }
}
