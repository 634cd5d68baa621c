//! The monitor: samples the gauges on a timer, applies the policy, and publishes the restrictions.
//!
//! Other parts of the server hold a [`LoadMonitorHandle`]: reading the current restrictions costs
//! two relaxed atomic loads; reading the full report takes a lock that is held only briefly. Samples
//! are taken on a separate thread, never for a connection or a message. A missing gauge is reported
//! and is not fatal. A disk that hangs delays the samples; the time of the report then shows how
//! old it is.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use mail::Timestamp;
use parking_lot::Mutex;

use crate::policy::{ActiveLimits, AllowedClients, GaugeReading, LoadLimit, LoadLimits, LoadRestrictions, LoadSample};

/// The default interval between samples.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Reads the gauges: of the machine, or in a test.
pub trait GaugeReader: Send {
    /// The current reading of each gauge, always in the same order.
    fn read(&mut self) -> Vec<GaugeReading>;
}

/// Called with the old state and the new one, which is already published.
type OnChange = Box<dyn FnMut(&ActiveLimits, &ActiveLimits) + Send>;

/// Samples the gauges when called; [`LoadMonitor::start`] runs it on a thread.
pub struct LoadMonitor {
    sources: Box<dyn GaugeReader>,
    limits: LoadLimits,
    on_change: OnChange,
    handle: LoadMonitorHandle,
}

/// A handle to the current restrictions and the latest report.
#[derive(Clone, Debug)]
pub struct LoadMonitorHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    restrictions: AtomicU8,
    /// Whatever the load is, no client is let in any more.
    refuses_all: AtomicBool,
    report: Mutex<Arc<LoadReport>>,
}

/// Everything the monitor knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// The latest sample.
    pub sample: LoadSample,
    /// All configured limits, in the order of the gauges.
    pub limits: Vec<LoadLimit>,
    /// The active limits, and why they are active.
    pub state: ActiveLimits,
}

/// A running monitor; dropping it stops the thread.
#[derive(Debug)]
pub struct LoadMonitorThread {
    /// Sends new limits and a new interval; the thread ends when this is dropped.
    changes: Option<mpsc::Sender<(LoadLimits, Duration)>>,
    thread: Option<JoinHandle<()>>,
}

impl LoadMonitor {
    /// A monitor that has not sampled yet: nothing is restricted. `on_change` is called when a
    /// limit becomes active or inactive, and must not block for long.
    pub fn new(
        sources: impl GaugeReader + 'static,
        limits: LoadLimits,
        on_change: impl FnMut(&ActiveLimits, &ActiveLimits) + Send + 'static,
    ) -> LoadMonitor {
        let shared = Shared {
            restrictions: AtomicU8::new(LoadRestrictions::default().bits()),
            refuses_all: AtomicBool::new(false),
            report: Mutex::default(),
        };
        LoadMonitor {
            sources: Box::new(sources),
            limits,
            on_change: Box::new(on_change),
            handle: LoadMonitorHandle { shared: Arc::new(shared) },
        }
    }

    /// A handle to what the monitor publishes.
    pub fn handle(&self) -> LoadMonitorHandle {
        self.handle.clone()
    }

    /// Samples the gauges once.
    pub fn sample_once(&mut self, now: Timestamp) {
        let sample = LoadSample { at: now, readings: self.sources.read() };
        let before = self.handle.report();
        let state = before.state.after_sample(&sample, &self.limits);
        let limits = sample.readings.iter().flat_map(|reading| self.limits.for_gauge(&reading.gauge)).collect();
        let after = Arc::new(LoadReport { sample, limits, state });
        self.handle.publish(after.clone());
        let (before, after) = (&before.state, &after.state);
        if after.activated_since(before).next().is_some() || after.cleared_since(before).next().is_some() {
            (self.on_change)(before, after);
        }
    }

    /// Samples immediately, and then at intervals of `every`, on a thread of its own.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(mut self, mut every: Duration) -> io::Result<LoadMonitorThread> {
        self.sample_once(SystemTime::now().into());
        let (changes, receiver) = mpsc::channel::<(LoadLimits, Duration)>();
        let work = move || {
            loop {
                match receiver.recv_timeout(every) {
                    Ok(changed) => (self.limits, every) = changed,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                self.sample_once(SystemTime::now().into());
            }
        };
        let thread = thread::Builder::new().name("load".into()).spawn(work)?;
        Ok(LoadMonitorThread { changes: Some(changes), thread: Some(thread) })
    }
}

impl LoadMonitorThread {
    /// Applies new limits and a new interval, and samples immediately.
    pub fn reconfigure(&self, limits: LoadLimits, every: Duration) {
        if let Some(sender) = &self.changes {
            // The receiver is gone only if the thread has panicked, which was reported then.
            let _ = sender.send((limits, every));
        }
    }
}

impl LoadMonitorHandle {
    /// The current restrictions: two relaxed loads.
    pub fn restrictions(&self) -> LoadRestrictions {
        let restrictions = LoadRestrictions::from_bits(self.shared.restrictions.load(Relaxed));
        match self.shared.refuses_all.load(Relaxed) {
            true => LoadRestrictions { intake: AllowedClients::None, ..restrictions },
            false => restrictions,
        }
    }

    /// From now on no client is let in, whatever the load is: the server is to stop.
    pub fn refuse_all_clients(&self) {
        self.shared.refuses_all.store(true, Relaxed);
    }

    /// The report of the latest sample.
    pub fn report(&self) -> Arc<LoadReport> {
        self.shared.report.lock().clone()
    }

    fn publish(&self, report: Arc<LoadReport>) {
        self.shared.restrictions.store(report.state.restrictions().bits(), Relaxed);
        *self.shared.report.lock() = report;
    }
}

impl LoadReport {
    /// Configured limits that can never be active, because their gauges have no value. The operator
    /// should be warned about them.
    pub fn limits_without_gauge(&self) -> impl Iterator<Item = &LoadLimit> {
        let blind = self.sample.readings.iter().filter(|reading| reading.value.is_none());
        blind.flat_map(|reading| self.limits.iter().filter(|limit| limit.gauge == reading.gauge))
    }
}

impl Drop for LoadMonitorThread {
    fn drop(&mut self) {
        drop(self.changes.take());
        // If the thread panicked, that was reported then.
        self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{AllowedDeliveries, Gauge};

    /// A load average set by the test.
    #[derive(Clone, Default)]
    struct FakeLoad(Arc<Mutex<Option<f64>>>);

    impl FakeLoad {
        fn set(&self, value: Option<f64>) {
            *self.0.lock() = value;
        }
    }

    impl GaugeReader for FakeLoad {
        fn read(&mut self) -> Vec<GaugeReading> {
            vec![GaugeReading { gauge: Gauge::LoadAverage, source: "fake", value: *self.0.lock() }]
        }
    }

    fn limits() -> LoadLimits {
        LoadLimits { queue_only_above: Some(8.0), refuse_above: Some(20.0), ..LoadLimits::default() }
    }

    fn ignore_changes(_: &ActiveLimits, _: &ActiveLimits) {}

    #[test]
    fn before_the_first_sample_everything_is_allowed() {
        let monitor = LoadMonitor::new(FakeLoad::default(), limits(), ignore_changes);
        assert_eq!(monitor.handle().restrictions(), LoadRestrictions::default());
        assert_eq!(*monitor.handle().report(), LoadReport::default());
    }

    #[test]
    fn what_is_in_force_is_published_with_its_reason() {
        let load = FakeLoad::default();
        let mut monitor = LoadMonitor::new(load.clone(), limits(), ignore_changes);
        let watch = monitor.handle();
        load.set(Some(21.0));
        monitor.sample_once(Timestamp(5000));
        monitor.sample_once(Timestamp(6000));
        let LoadRestrictions { delivery, intake, .. } = watch.restrictions();
        assert_eq!((delivery, intake), (AllowedDeliveries::QueueOnly, AllowedClients::ReservedOnly));
        let report = watch.report();
        assert_eq!(report.sample.at, Timestamp(6000));
        assert_eq!(report.limits.len(), 2);
        let since: Vec<_> = report.state.active.iter().map(|reason| (reason.value, reason.since)).collect();
        assert_eq!(since, [(21.0, Timestamp(5000)); 2]);
    }

    #[test]
    fn only_changes_are_reported() {
        let (load, (tell, heard)) = (FakeLoad::default(), mpsc::channel());
        let on_change = move |before: &ActiveLimits, after: &ActiveLimits| {
            tell.send((after.activated_since(before).count(), after.cleared_since(before).count())).unwrap();
        };
        let mut monitor = LoadMonitor::new(load.clone(), limits(), on_change);
        for value in [1.0, 9.0, 10.0, 7.9, 21.0, 1.0, 0.5] {
            load.set(Some(value));
            monitor.sample_once(Timestamp(1));
        }
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [(1, 0), (1, 0), (0, 2)]);
    }

    #[test]
    fn limits_without_a_gauge_are_listed() {
        let load = FakeLoad::default();
        let mut monitor = LoadMonitor::new(load.clone(), limits(), ignore_changes);
        monitor.sample_once(Timestamp(1));
        assert_eq!(monitor.handle().report().limits_without_gauge().count(), 2);
        load.set(Some(0.0));
        monitor.sample_once(Timestamp(2));
        assert_eq!(monitor.handle().report().limits_without_gauge().count(), 0);
    }

    #[test]
    fn the_thread_samples_on_its_timer() {
        let (load, (tell, heard)) = (FakeLoad::default(), mpsc::channel());
        let on_change = move |_: &ActiveLimits, after: &ActiveLimits| tell.send(after.restrictions().intake).unwrap();
        let monitor = LoadMonitor::new(load.clone(), limits(), on_change);
        let _running = monitor.start(Duration::from_millis(1)).unwrap();
        load.set(Some(30.0));
        assert_eq!(heard.recv().unwrap(), AllowedClients::ReservedOnly);
        load.set(Some(0.0));
        assert_eq!(heard.recv().unwrap(), AllowedClients::Open);
    }

    #[test]
    fn new_limits_apply_immediately() {
        let (load, (tell, heard)) = (FakeLoad::default(), mpsc::channel());
        load.set(Some(15.0));
        let on_change = move |_: &ActiveLimits, after: &ActiveLimits| tell.send(after.restrictions().intake).unwrap();
        let monitor = LoadMonitor::new(load, LoadLimits::default(), on_change);
        let running = monitor.start(Duration::from_secs(3600)).unwrap();
        running
            .reconfigure(LoadLimits { refuse_above: Some(10.0), ..LoadLimits::default() }, Duration::from_secs(3600));
        assert_eq!(heard.recv().unwrap(), AllowedClients::ReservedOnly);
        running.reconfigure(LoadLimits::default(), Duration::from_secs(3600));
        assert_eq!(heard.recv().unwrap(), AllowedClients::Open);
    }

    /// Waits an hour if the thread does not notice the end.
    #[test]
    fn the_thread_samples_immediately_and_ends_immediately() {
        let load = FakeLoad::default();
        load.set(Some(30.0));
        let monitor = LoadMonitor::new(load, limits(), ignore_changes);
        let watch = monitor.handle();
        let running = monitor.start(Duration::from_secs(3600)).unwrap();
        assert_eq!(watch.restrictions().intake, AllowedClients::ReservedOnly);
        drop(running);
    }
}
