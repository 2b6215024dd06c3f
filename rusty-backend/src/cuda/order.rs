//! Two streams, one order: weights travel on a stream of their own while kernels run on another.
//!
//! Each stream runs its own work in order. Between the two there are only these rules, which [`Queues`] keeps:
//!
//! * *Nothing is read before it is there.* Behind its copies an upload records the buffer's `arrived` on the upload stream and
//!   marks the buffer as arriving. The next work of the kernels' stream that binds the buffer takes the mark and waits for the
//!   event first. What comes later on that stream is behind the same wait, and needs none of its own.
//! * *Nothing is overwritten while it is read.* Behind its launch, work of the kernels' stream marks each buffer that it binds
//!   as read. The next upload to the buffer takes the mark and has the upload stream wait for all that the kernels' stream was
//!   given so far, its last reader among it. An upload that follows right behind the reader waits for no other kernel; one to a
//!   buffer that nothing has read waits for none.
//! * Uploads among themselves, zeroing included, are in order on their stream.
//!
//! Waits lie between launches and graphs, never inside a capture: graphs are captured on a third stream, that waits for nothing.
//! An event may be recorded anew as soon as a wait for it was enqueued: the wait is for what was recorded by then.
//!
//! Marks are taken before the wait and set behind the work. So a thread that uploads while another launches may lose a race
//! with it, as before on one stream, but never a mark: what is called after both have returned is in order with both.

use cudarc::driver::{CudaEvent, CudaStream, DriverError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A queue that records events and waits for them.
pub(super) trait Stream {
    /// A point of a stream.
    type Event;
    /// Why a call failed.
    type Error;

    /// Makes `event` the point that the stream reaches once all it was given so far has run.
    fn record(&self, event: &Self::Event) -> Result<(), Self::Error>;

    /// What the stream is given from here on runs once the point is reached that `event` is now.
    fn wait(&self, event: &Self::Event) -> Result<(), Self::Error>;
}

impl Stream for Arc<CudaStream> {
    type Event = CudaEvent;
    type Error = DriverError;

    fn record(&self, event: &CudaEvent) -> Result<(), DriverError> {
        event.record(self)
    }

    fn wait(&self, event: &CudaEvent) -> Result<(), DriverError> {
        CudaStream::wait(self, event)
    }
}

/// Whose turn it is with a buffer that both streams touch.
#[derive(Debug)]
pub(super) struct Turns<E> {
    /// The end of the last upload.
    arrived: E,
    /// Whether the kernels' stream has yet to wait for it.
    arriving: AtomicBool,
    /// Whether the kernels' stream has touched it since the upload stream last waited for that.
    read: AtomicBool,
}

impl<E> Turns<E> {
    /// Of a new buffer; `arrived` is an event of its own.
    pub(super) fn new(arrived: E) -> Self {
        Self {
            arrived,
            arriving: AtomicBool::new(false),
            read: AtomicBool::new(false),
        }
    }
}

/// The two streams.
pub(super) struct Queues<S: Stream> {
    /// Runs kernels, and copies of what is not weights.
    pub(super) kernels: S,
    /// Brings weights.
    pub(super) uploads: S,
    /// Where the kernels' stream was when an upload last had to wait for it.
    turn: Mutex<S::Event>,
}

impl<S: Stream> Queues<S> {
    /// `turn` is an event of their own.
    pub(super) fn new(kernels: S, uploads: S, turn: S::Event) -> Self {
        Self {
            kernels,
            uploads,
            turn: Mutex::new(turn),
        }
    }

    /// Enqueues what writes a buffer from the host's side: on the upload stream where the buffer takes turns, else behind the
    /// kernels.
    pub(super) fn write(
        &self,
        to: Option<&Arc<Turns<S::Event>>>,
        work: impl FnOnce(&S) -> Result<(), S::Error>,
    ) -> Result<(), S::Error> {
        let Some(turns) = to else {
            return work(&self.kernels);
        };
        if turns.read.swap(false, Ordering::AcqRel) {
            self.wait_for_kernels().inspect_err(|_| {
                turns.read.store(true, Ordering::Release);
            })?;
        }
        let written = work(&self.uploads);
        // Also where it failed: a part of it may be on its way.
        self.uploads.record(&turns.arrived)?;
        turns.arriving.store(true, Ordering::Release);
        written
    }

    fn wait_for_kernels(&self) -> Result<(), S::Error> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.kernels.record(&turn)?;
        self.uploads.wait(&turn)
    }

    /// Enqueues what touches buffers on the device's side: kernels, graphs and copies, of which `bound` are the buffers that
    /// take turns.
    pub(super) fn launch(
        &self,
        bound: &[Arc<Turns<S::Event>>],
        work: impl FnOnce(&S) -> Result<(), S::Error>,
    ) -> Result<(), S::Error> {
        for turns in bound {
            if turns.arriving.swap(false, Ordering::AcqRel) {
                self.kernels.wait(&turns.arrived).inspect_err(|_| {
                    turns.arriving.store(true, Ordering::Release);
                })?;
            }
        }
        let launched = work(&self.kernels);
        // Also where it failed: a part of it may run.
        for turns in bound {
            turns.read.store(true, Ordering::Release);
        }
        launched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::AtomicU32;

    /// What is known to have run before whatever a stream is given next: a bit for each piece of work. Events hold the same.
    #[derive(Debug, Default)]
    struct Simulated(AtomicU32);

    impl Simulated {
        /// Enqueues a piece of work and gives what it runs behind.
        fn run(&self, work: usize) -> u32 {
            self.0.fetch_or(1 << work, Ordering::Relaxed)
        }
    }

    impl Stream for Simulated {
        type Event = AtomicU32;
        type Error = Infallible;

        fn record(&self, event: &AtomicU32) -> Result<(), Infallible> {
            event.store(self.0.load(Ordering::Relaxed), Ordering::Relaxed);
            Ok(())
        }

        fn wait(&self, event: &AtomicU32) -> Result<(), Infallible> {
            self.0
                .fetch_or(event.load(Ordering::Relaxed), Ordering::Relaxed);
            Ok(())
        }
    }

    /// A call, by bits of the buffers that it touches.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Call {
        Upload(u32),
        Launch(u32),
    }
    use Call::{Launch, Upload};

    /// The calls that each call runs behind, as bits.
    fn before(calls: &[Call]) -> Vec<u32> {
        let stream = Simulated::default;
        let queues = Queues::new(stream(), stream(), AtomicU32::default());
        let turns: [_; 2] = std::array::from_fn(|_| Arc::new(Turns::new(AtomicU32::default())));
        let mut before = vec![0; calls.len()];
        for (at, call) in calls.iter().enumerate() {
            let work = |stream: &Simulated| {
                before[at] = stream.run(at);
                Ok(())
            };
            let done = match *call {
                Upload(buffer) => queues.write(Some(&turns[buffer as usize >> 1]), work),
                Launch(buffers) => {
                    let bound = (0..2).filter(|i| buffers >> i & 1 == 1);
                    let bound: Vec<_> = bound.map(|i| turns[i].clone()).collect();
                    queues.launch(&bound, work)
                }
            };
            done.expect("cannot fail");
        }
        before
    }

    /// Two buffers, and every sequence of six calls: each runs behind all before it that touch what it writes, or write what
    /// it touches.
    #[test]
    fn what_touches_the_same_buffer_keeps_its_order() {
        let kinds = [Upload(1), Upload(2), Launch(1), Launch(2), Launch(3)];
        for number in 0..kinds.len().pow(6) {
            let nth = |at: u32| kinds[number / kinds.len().pow(at) % kinds.len()];
            let calls: Vec<Call> = (0..6).map(nth).collect();
            for (later, behind) in before(&calls).iter().enumerate() {
                for (earlier, call) in calls[..later].iter().enumerate() {
                    let meet = match (*call, calls[later]) {
                        (Launch(_), Launch(_)) => false,
                        (Upload(a) | Launch(a), Upload(b) | Launch(b)) => a & b != 0,
                    };
                    let ordered = behind >> earlier & 1 == 1;
                    assert!(ordered || !meet, "{calls:?}: {later} beside {earlier}");
                }
            }
        }
    }

    /// A first upload of the second buffer beside a launch of the first, and a launch beside an upload that it does not read;
    /// nothing else is between the streams.
    #[test]
    fn what_touches_other_buffers_runs_beside_it() {
        let calls = [Upload(1), Launch(1), Upload(2), Launch(1), Launch(2)];
        assert_eq!(before(&calls), [0, 0b1, 0b1, 0b11, 0b1111]);
        // Two windows: each is filled anew behind its own reader, while the other's runs.
        let calls = [
            Upload(1),
            Upload(2),
            Launch(1),
            Upload(1),
            Launch(2),
            Upload(2),
        ];
        assert_eq!(before(&calls), [0, 0b1, 0b1, 0b111, 0b111, 0b11111]);
    }
}
