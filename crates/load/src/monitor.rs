//! The monitor: samples the gauges on a timer, applies the policy, and publishes the restrictions.
//!
//! Other parts of the server hold a [`Watch`]: reading the current restrictions costs one relaxed
//! atomic load; reading the full report takes a lock that is held only briefly. Samples are taken
//! on a separate thread, never for a connection or a message. A missing gauge is reported and is
//! not fatal. A disk that hangs delays the samples; the time of the report then shows how old it
//! is.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use mail::Timestamp;

use crate::policy::{Limit, Limits, Measures, Reading, Sample, State};

/// The default interval between samples.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Reads the gauges: of the machine, or in a test.
pub trait Sources: Send {
    /// The current reading of each gauge, always in the same order.
    fn read(&mut self) -> Vec<Reading>;
}

/// Called with the old state and the new one, which is already published.
type OnChange = Box<dyn FnMut(&State, &State) + Send>;

/// Samples the gauges when called; [`Monitor::start`] runs it on a thread.
pub struct Monitor {
    sources: Box<dyn Sources>,
    limits: Limits,
    on_change: OnChange,
    watch: Watch,
}

/// A handle to the current restrictions and the latest report.
#[derive(Clone, Debug)]
pub struct Watch {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    measures: AtomicU8,
    report: Mutex<Arc<Report>>,
}

/// Everything the monitor knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The latest sample.
    pub sample: Sample,
    /// All configured limits, in the order of the gauges.
    pub limits: Vec<Limit>,
    /// The active limits, and why they are active.
    pub state: State,
}

/// A running monitor; dropping it stops the thread.
#[derive(Debug)]
pub struct Running {
    /// Sends new limits and a new interval; the thread ends when this is dropped.
    stopper: Option<mpsc::Sender<(Limits, Duration)>>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// A monitor that has not sampled yet: nothing is restricted. `on_change` is called when a
    /// limit becomes active or inactive, and must not block for long.
    pub fn new(
        sources: impl Sources + 'static,
        limits: Limits,
        on_change: impl FnMut(&State, &State) + Send + 'static,
    ) -> Monitor {
        let shared = Shared { measures: AtomicU8::new(Measures::default().bits()), report: Mutex::default() };
        Monitor {
            sources: Box::new(sources),
            limits,
            on_change: Box::new(on_change),
            watch: Watch { shared: Arc::new(shared) },
        }
    }

    /// A handle to what the monitor publishes.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Samples the gauges once.
    pub fn look(&mut self, now: Timestamp) {
        let sample = Sample { at: now, readings: self.sources.read() };
        let before = self.watch.report();
        let state = before.state.after(&sample, &self.limits);
        let limits = sample.readings.iter().flat_map(|reading| self.limits.of(&reading.gauge)).collect();
        let after = Arc::new(Report { sample, limits, state });
        self.watch.publish(after.clone());
        let (before, after) = (&before.state, &after.state);
        if after.entered(before).next().is_some() || after.left(before).next().is_some() {
            (self.on_change)(before, after);
        }
    }

    /// Samples immediately, and then at intervals of `every`, on a thread of its own.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(mut self, mut every: Duration) -> io::Result<Running> {
        self.look(SystemTime::now().into());
        let (stopper, told) = mpsc::channel::<(Limits, Duration)>();
        let work = move || {
            loop {
                match told.recv_timeout(every) {
                    Ok(changed) => (self.limits, every) = changed,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                self.look(SystemTime::now().into());
            }
        };
        let thread = thread::Builder::new().name("load".into()).spawn(work)?;
        Ok(Running { stopper: Some(stopper), thread: Some(thread) })
    }
}

impl Running {
    /// Applies new limits and a new interval, and samples immediately.
    pub fn change(&self, limits: Limits, every: Duration) {
        if let Some(teller) = &self.stopper {
            // The receiver is gone only if the thread has panicked, which was reported then.
            let _ = teller.send((limits, every));
        }
    }
}

impl Watch {
    /// The current restrictions: one relaxed load.
    pub fn measures(&self) -> Measures {
        Measures::from_bits(self.shared.measures.load(Relaxed))
    }

    /// The report of the latest sample.
    pub fn report(&self) -> Arc<Report> {
        self.shared.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish(&self, report: Arc<Report>) {
        self.shared.measures.store(report.state.measures().bits(), Relaxed);
        *self.shared.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }
}

impl Report {
    /// Configured limits that can never be active, because their gauges have no value. The operator
    /// should be warned about them.
    pub fn blind(&self) -> impl Iterator<Item = &Limit> {
        let blind = self.sample.readings.iter().filter(|reading| reading.value.is_none());
        blind.flat_map(|reading| self.limits.iter().filter(|limit| limit.gauge == reading.gauge))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stopper.take());
        // If the thread panicked, that was reported then.
        self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Delivery, Gauge, Intake};

    /// A load average set by the test.
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Option<f64>>>);

    impl Told {
        fn set(&self, value: Option<f64>) {
            *self.0.lock().unwrap() = value;
        }
    }

    impl Sources for Told {
        fn read(&mut self) -> Vec<Reading> {
            vec![Reading { gauge: Gauge::LoadAverage, source: "told", value: *self.0.lock().unwrap() }]
        }
    }

    fn limits() -> Limits {
        Limits { queue_only_above: Some(8.0), refuse_above: Some(20.0), ..Limits::default() }
    }

    fn nobody(_: &State, _: &State) {}

    #[test]
    fn before_the_first_look_everything_is_allowed() {
        let monitor = Monitor::new(Told::default(), limits(), nobody);
        assert_eq!(monitor.watch().measures(), Measures::default());
        assert_eq!(*monitor.watch().report(), Report::default());
    }

    #[test]
    fn what_is_in_force_is_published_with_its_reason() {
        let told = Told::default();
        let mut monitor = Monitor::new(told.clone(), limits(), nobody);
        let watch = monitor.watch();
        told.set(Some(21.0));
        monitor.look(Timestamp(5000));
        monitor.look(Timestamp(6000));
        let Measures { delivery, intake, .. } = watch.measures();
        assert_eq!((delivery, intake), (Delivery::QueueOnly, Intake::ReservedOnly));
        let report = watch.report();
        assert_eq!(report.sample.at, Timestamp(6000));
        assert_eq!(report.limits.len(), 2);
        let since: Vec<_> = report.state.reasons.iter().map(|reason| (reason.value, reason.since)).collect();
        assert_eq!(since, [(21.0, Timestamp(5000)); 2]);
    }

    #[test]
    fn only_changes_are_told() {
        let (told, (tell, heard)) = (Told::default(), mpsc::channel());
        let on_change = move |before: &State, after: &State| {
            tell.send((after.entered(before).count(), after.left(before).count())).unwrap();
        };
        let mut monitor = Monitor::new(told.clone(), limits(), on_change);
        for value in [1.0, 9.0, 10.0, 7.9, 21.0, 1.0, 0.5] {
            told.set(Some(value));
            monitor.look(Timestamp(1));
        }
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [(1, 0), (1, 0), (0, 2)]);
    }

    #[test]
    fn limits_of_a_gauge_that_is_absent_are_told_apart() {
        let told = Told::default();
        let mut monitor = Monitor::new(told.clone(), limits(), nobody);
        monitor.look(Timestamp(1));
        assert_eq!(monitor.watch().report().blind().count(), 2);
        told.set(Some(0.0));
        monitor.look(Timestamp(2));
        assert_eq!(monitor.watch().report().blind().count(), 0);
    }

    #[test]
    fn the_thread_looks_by_itself() {
        let (told, (tell, heard)) = (Told::default(), mpsc::channel());
        let on_change = move |_: &State, after: &State| tell.send(after.measures().intake).unwrap();
        let monitor = Monitor::new(told.clone(), limits(), on_change);
        let _running = monitor.start(Duration::from_millis(1)).unwrap();
        told.set(Some(30.0));
        assert_eq!(heard.recv().unwrap(), Intake::ReservedOnly);
        told.set(Some(0.0));
        assert_eq!(heard.recv().unwrap(), Intake::Open);
    }

    #[test]
    fn other_limits_hold_at_once() {
        let (told, (tell, heard)) = (Told::default(), mpsc::channel());
        told.set(Some(15.0));
        let on_change = move |_: &State, after: &State| tell.send(after.measures().intake).unwrap();
        let monitor = Monitor::new(told, Limits::default(), on_change);
        let running = monitor.start(Duration::from_secs(3600)).unwrap();
        running.change(Limits { refuse_above: Some(10.0), ..Limits::default() }, Duration::from_secs(3600));
        assert_eq!(heard.recv().unwrap(), Intake::ReservedOnly);
        running.change(Limits::default(), Duration::from_secs(3600));
        assert_eq!(heard.recv().unwrap(), Intake::Open);
    }

    /// Waits an hour if the thread does not notice the end.
    #[test]
    fn the_thread_looks_at_once_and_ends_at_once() {
        let told = Told::default();
        told.set(Some(30.0));
        let monitor = Monitor::new(told, limits(), nobody);
        let watch = monitor.watch();
        let running = monitor.start(Duration::from_secs(3600)).unwrap();
        assert_eq!(watch.measures().intake, Intake::ReservedOnly);
        drop(running);
    }
}
