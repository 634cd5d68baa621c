//! The thread that counts observations. Sessions and deliveries never wait for it: what does not fit into
//! its line is dropped, and counted.
//!
//! It ends when it is stopped; what is submitted then is dropped. A file that cannot be written is
//! logged, and written later.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use mail::{OperatorLog, Timestamp};

use super::counters::{DroppedObservation, ReportCounters};
use super::observation::Observation;
use super::store::ReportStore;

/// Observations that wait to be counted.
const LINE_MAX: usize = 10_000;
/// How long counts are only in memory.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);

type StoreWork = Box<dyn FnOnce(&mut ReportStore) + Send>;

enum CollectorMsg {
    Observed(Timestamp, Box<Observation>),
    WithStore(StoreWork),
    Stop,
}

/// A handle to the thread. Cheap to clone.
#[derive(Clone)]
pub struct ReportCollector {
    line: SyncSender<CollectorMsg>,
    counters: Arc<ReportCounters>,
}

impl ReportCollector {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system has no thread left.
    pub fn start(store: ReportStore, log: Arc<dyn OperatorLog>) -> io::Result<ReportCollector> {
        let (line, messages) = mpsc::sync_channel(LINE_MAX);
        let counters = Arc::new(ReportCounters::default());
        let mut counting = CountingThread { store, counters: counters.clone(), log };
        thread::Builder::new().name("reports".to_owned()).spawn(move || counting.run(&messages))?;
        Ok(ReportCollector { line, counters })
    }

    /// Has an observation counted, soon. Never waits.
    pub fn submit(&self, now: Timestamp, observation: Observation) {
        if self.line.try_send(CollectorMsg::Observed(now, Box::new(observation))).is_err() {
            self.counters.count_dropped(DroppedObservation::Line);
        }
    }

    /// Runs `work` on the thread, after all that was submitted before, and waits for it. None if the thread
    /// has stopped.
    pub fn with_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ReportStore) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = mpsc::channel();
        // The caller waits, so only a stopped thread drops what is sent.
        let work: StoreWork = Box::new(move |store| drop(sender.send(work(store))));
        self.line.send(CollectorMsg::WithStore(work)).ok()?;
        receiver.recv().ok()
    }

    /// The counters.
    pub fn counters(&self) -> &Arc<ReportCounters> {
        &self.counters
    }

    /// Writes the counts, and ends the thread.
    pub fn stop(&self) {
        // It may have been stopped before.
        drop(self.with_store(|store| store.write()));
        drop(self.line.send(CollectorMsg::Stop));
    }
}

struct CountingThread {
    store: ReportStore,
    counters: Arc<ReportCounters>,
    log: Arc<dyn OperatorLog>,
}

impl CountingThread {
    fn run(&mut self, messages: &Receiver<CollectorMsg>) {
        let mut write_at = Instant::now() + WRITE_INTERVAL;
        loop {
            match messages.recv_timeout(write_at.saturating_duration_since(Instant::now())) {
                Ok(CollectorMsg::Observed(now, observation)) => self.count(now, *observation),
                Ok(CollectorMsg::WithStore(work)) => work(&mut self.store),
                Ok(CollectorMsg::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() >= write_at {
                self.write();
                write_at = Instant::now() + WRITE_INTERVAL;
            }
        }
    }

    fn count(&mut self, now: Timestamp, observation: Observation) {
        if let Err(limit) = self.store.add(now, observation) {
            self.counters.count_dropped(limit);
        }
    }

    fn write(&mut self) {
        if let Err(error) = self.store.write() {
            self.log.log_line(format_args!("cannot write the counts of reports: {error}"));
        }
        match self.store.remove_old_days(SystemTime::now().into()) {
            Ok(lost) => self.counters.count_reports(super::ReportResult::Expired, lost),
            Err(error) => self.log.log_line(format_args!("cannot remove the counts of reports: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;
    use crate::reports::{CountLimits, ReportKind, ReportRow, ReportSubject, TlsRow};

    struct NoLog;

    impl OperatorLog for NoLog {
        fn log_line(&self, line: fmt::Arguments<'_>) {
            panic!("{line}");
        }
    }

    fn observation() -> Observation {
        let row = ReportRow::Tls(TlsRow {
            policy_type: "sts".into(),
            policy_strings: Vec::new(),
            mx_host: "mx".into(),
            receiving_ip: None,
            failure: None,
            reason: None,
        });
        Observation { subject: ReportSubject { kind: ReportKind::Tls, domain: "a.example".into() }, policy: None, row }
    }

    fn dropped(collector: &ReportCollector) -> u64 {
        collector.counters().dropped().map(|(_, count)| count).sum()
    }

    #[test]
    fn a_full_line_drops_and_counts_and_nobody_waits() {
        let folder = tempfile::tempdir().unwrap();
        let now: Timestamp = SystemTime::now().into();
        let store = ReportStore::open(folder.path(), CountLimits::default(), now).unwrap();
        let collector = ReportCollector::start(store, Arc::new(NoLog)).unwrap();
        let (release, held) = mpsc::channel::<()>();
        let (began, begun) = mpsc::channel();
        let busy = collector.clone();
        let holder = thread::spawn(move || {
            busy.with_store(move |_| {
                began.send(()).unwrap();
                held.recv().unwrap();
            })
        });
        begun.recv().unwrap();
        for _ in 0..LINE_MAX + 7 {
            collector.submit(now, observation());
        }
        assert_eq!(dropped(&collector), 7);
        release.send(()).unwrap();
        holder.join().unwrap();
        let total = collector.with_store(|store| store.summaries()[0].total).unwrap();
        assert_eq!(total, LINE_MAX as u64);
        collector.stop();
        let reopened = ReportStore::open(folder.path(), CountLimits::default(), now).unwrap();
        assert_eq!(reopened.summaries()[0].total, LINE_MAX as u64);
    }
}
