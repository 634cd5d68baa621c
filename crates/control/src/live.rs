//! What happens in the server, as it happens: samples of its counters, actions, and the lines of its log. Readers
//! get them as server-sent events. Nothing waits for a reader: one that falls behind misses events and
//! learns how many, and without readers nothing is made.
//!
//! | event | data | for |
//! |---|---|---|
//! | `sample` | a [`HistorySample`](crate::history::HistorySample), every two seconds | all readers |
//! | `action` | what an operator has changed: by whom, the order, its result | all readers |
//! | `log` | a line of the log, in its JSON format | operators who want it, since lines name users |
//! | `skipped` | `{"events": n}`: this many were left out, because the reader or the server was too busy | all readers |

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mail::LogObserver;
use parking_lot::Mutex;
use tokio::sync::broadcast::{
    self,
    error::{RecvError, TryRecvError},
};

use crate::current_handler::CurrentHandler;
use crate::history::{History, HistoryAnswer, HistorySpan, Series, ServerCounters};
use crate::overview::OverviewCache;

/// Concurrent readers of events.
pub(crate) const READERS_MAX: usize = 32;
/// Events that wait for the slowest reader.
const EVENTS_WAITING_MAX: usize = 1024;
/// Lines of the log that become events each second; a busy server writes many more than anybody reads.
const LINES_PER_SECOND_MAX: u32 = 100;
/// The time between two samples for readers.
const LIVE_STEP: Duration = Duration::from_secs(2);
/// Without readers, every fifth step is sampled, for the history.
const HISTORY_STEPS: u32 = 5;

/// An event for readers.
#[derive(Clone, Debug)]
enum LiveEvent {
    Sample(Arc<str>),
    Action(Arc<str>),
    LogLine(Arc<str>),
    /// Lines of the log that were left out.
    LinesSkipped(u64),
}

/// The history, and the readers of events.
pub struct LiveMonitor {
    history: Mutex<History>,
    live: Mutex<Series>,
    events: broadcast::Sender<LiveEvent>,
    lines: Mutex<LineBudget>,
    /// Each reader of the log has a copy.
    log_reader: Arc<()>,
    /// What the dashboard shows, read a short time ago.
    pub(crate) overview: OverviewCache,
}

impl Default for LiveMonitor {
    fn default() -> LiveMonitor {
        LiveMonitor {
            history: Mutex::default(),
            live: Mutex::new(Series::new(LIVE_STEP, 1)),
            events: broadcast::Sender::new(EVENTS_WAITING_MAX),
            lines: Mutex::default(),
            log_reader: Arc::default(),
            overview: OverviewCache::default(),
        }
    }
}

impl LiveMonitor {
    /// The samples of a span.
    pub(crate) fn history(&self, span: HistorySpan) -> HistoryAnswer {
        self.history.lock().answer(span)
    }

    /// A new reader; None if there are too many.
    pub(crate) fn read_events(&self, sees_log: bool) -> Option<EventReader> {
        let is_free = self.events.receiver_count() < READERS_MAX;
        let log_reader = sees_log.then(|| self.log_reader.clone());
        is_free.then(|| EventReader { receiver: self.events.subscribe(), log_reader })
    }

    fn has_readers(&self) -> bool {
        self.events.receiver_count() > 0
    }

    /// Tells all readers what an operator has changed.
    pub(crate) fn report_action(&self, by: &str, order: &str, result: &str) {
        if self.has_readers() {
            let action = serde_json::json!({ "by": by, "order": order, "result": result });
            self.send(LiveEvent::Action(action.to_string().into()));
        }
    }

    fn take_reading(&self, counters: &ServerCounters) {
        self.history.lock().add(counters);
        let sample = self.live.lock().add(counters).and_then(|sample| serde_json::to_string(sample).ok());
        if let Some(sample) = sample {
            self.send(LiveEvent::Sample(sample.into()));
        }
    }

    fn send(&self, event: LiveEvent) {
        // Fails without readers.
        drop(self.events.send(event));
    }
}

impl LogObserver for LiveMonitor {
    fn is_watching(&self) -> bool {
        Arc::strong_count(&self.log_reader) > 1
    }

    fn observe(&self, line: &str) {
        let (passes, skipped) = self.lines.lock().take(Instant::now());
        if skipped > 0 {
            self.send(LiveEvent::LinesSkipped(skipped));
        }
        if passes {
            self.send(LiveEvent::LogLine(line.trim_end().into()));
        }
    }
}

/// Counts the lines of each second.
#[derive(Debug, Default)]
struct LineBudget {
    second: Option<Instant>,
    taken: u32,
    skipped: u64,
}

impl LineBudget {
    /// Whether a line passes, and how many lines of the second before did not.
    fn take(&mut self, now: Instant) -> (bool, u64) {
        let mut skipped = 0;
        if self.second.is_none_or(|second| now.duration_since(second) >= Duration::from_secs(1)) {
            skipped = self.skipped;
            *self = LineBudget { second: Some(now), ..LineBudget::default() };
        }
        self.taken += 1;
        let passes = self.taken <= LINES_PER_SECOND_MAX;
        self.skipped += u64::from(!passes);
        (passes, skipped)
    }
}

/// A reader of events.
#[derive(Debug)]
pub(crate) struct EventReader {
    receiver: broadcast::Receiver<LiveEvent>,
    /// Present if it sees the log.
    log_reader: Option<Arc<()>>,
}

impl EventReader {
    /// The next event in the format of server-sent events; None when the server stops. May be dropped
    /// while it waits, without losing an event.
    pub(crate) async fn next(&mut self) -> Option<String> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => {
                    if let Some(text) = self.text(&event) {
                        return Some(text);
                    }
                }
                Err(RecvError::Lagged(events)) => return Some(skipped(events)),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// The next event that is already there, in the same format.
    pub(crate) fn next_waiting(&mut self) -> Option<String> {
        loop {
            match self.receiver.try_recv() {
                Ok(event) => {
                    if let Some(text) = self.text(&event) {
                        return Some(text);
                    }
                }
                Err(TryRecvError::Lagged(events)) => return Some(skipped(events)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
            }
        }
    }

    /// None: the event is not for this reader.
    fn text(&self, event: &LiveEvent) -> Option<String> {
        match event {
            LiveEvent::Sample(sample) => Some(event_text("sample", sample)),
            LiveEvent::Action(action) => Some(event_text("action", action)),
            LiveEvent::LogLine(line) => self.log_reader.as_ref().map(|_| event_text("log", line)),
            LiveEvent::LinesSkipped(lines) => self.log_reader.as_ref().map(|_| skipped(*lines)),
        }
    }
}

fn event_text(name: &str, data: &str) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

fn skipped(events: u64) -> String {
    event_text("skipped", &format!("{{\"events\":{events}}}"))
}

/// The thread that reads the counters.
pub(crate) struct Sampler {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Sampler {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system cannot create a thread.
    pub(crate) fn start(handler: CurrentHandler, monitor: Arc<LiveMonitor>) -> std::io::Result<Sampler> {
        let (stop, stopped) = mpsc::channel();
        let run = move || {
            for step in 0u32.. {
                if step % HISTORY_STEPS == 0 || monitor.has_readers() {
                    // There is none while the server stops.
                    let counters = handler.current().counters();
                    counters.into_iter().for_each(|counters| monitor.take_reading(&counters));
                }
                if stopped.recv_timeout(LIVE_STEP) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("sampler".into()).spawn(run)?;
        Ok(Sampler { stop, thread })
    }

    /// Stops the thread, which waits for the scheduler at most.
    pub(crate) fn stop(self) {
        drop(self.stop);
        // A panic has already been reported.
        drop(self.thread.join());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_busy_second_are_left_out_and_counted() {
        let (mut budget, start) = (LineBudget::default(), Instant::now());
        let passed = (0..150).filter(|_| budget.take(start).0).count();
        assert_eq!(passed, 100);
        assert_eq!(budget.take(start + Duration::from_millis(999)), (false, 0));
        assert_eq!(budget.take(start + Duration::from_secs(1)), (true, 51));
        assert_eq!(budget.take(start + Duration::from_secs(1)), (true, 0));
    }

    #[tokio::test]
    async fn only_operators_see_the_log() {
        let monitor = LiveMonitor::default();
        assert!(!monitor.is_watching());
        let mut operator = monitor.read_events(true).unwrap();
        let mut reader = monitor.read_events(false).unwrap();
        assert!(monitor.is_watching());
        monitor.observe("{\"event\":\"login\"}\n");
        monitor.send(LiveEvent::Sample("{}".into()));
        assert_eq!(operator.next().await.unwrap(), "event: log\ndata: {\"event\":\"login\"}\n\n");
        assert_eq!(operator.next().await.unwrap(), "event: sample\ndata: {}\n\n");
        assert_eq!(reader.next().await.unwrap(), "event: sample\ndata: {}\n\n");
        monitor.observe("{\"event\":\"login\"}\n");
        assert_eq!(reader.next_waiting(), None);
        assert_eq!(operator.next_waiting().unwrap(), "event: log\ndata: {\"event\":\"login\"}\n\n");
        assert_eq!(operator.next_waiting(), None);
        monitor.report_action("token anna", "pause", "done");
        let action = r#"{"by":"token anna","order":"pause","result":"done"}"#;
        assert_eq!(reader.next().await.unwrap(), format!("event: action\ndata: {action}\n\n"));
        drop(operator);
        assert!(!monitor.is_watching(), "no lines are made for readers without the log");
        drop(monitor);
        assert_eq!(reader.next().await, None);
    }

    #[tokio::test]
    async fn a_reader_that_falls_behind_learns_how_much_it_missed() {
        let monitor = LiveMonitor::default();
        let mut reader = monitor.read_events(false).unwrap();
        (0..EVENTS_WAITING_MAX + 5).for_each(|_| monitor.send(LiveEvent::Sample("{}".into())));
        assert_eq!(reader.next().await.unwrap(), "event: skipped\ndata: {\"events\":5}\n\n");
    }

    #[test]
    fn readers_are_limited() {
        let monitor = LiveMonitor::default();
        let readers: Vec<_> = (0..READERS_MAX).map(|_| monitor.read_events(false).unwrap()).collect();
        assert!(monitor.read_events(true).is_none());
        drop(readers);
        assert!(monitor.read_events(true).is_some());
    }
}
