//! The thread that sends reports to the owners of other domains: it takes those that are due from the
//! collector, asks the DNS whether and where they are wanted, and submits them to the spool.
//!
//! | a report | then |
//! |---|---|
//! | is in the spool, for each destination that wants it | its counts are forgotten |
//! | is wanted nowhere, or too large | the same |
//! | needs the DNS or the directory, which do not answer, or the spool is full | tried again later |
//! | cannot be sent for two days | the collector forgets it |
//!
//! Reports have the null sender, and no notice about them is sent: one that bounces vanishes. After a
//! crash between the two steps of a report it is sent again, with the same identifier.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use control::{ReportOperator, ReportParts, SentReport};
use delivery::bounce::NoticeSigner;
use lookup::directory::{AddressResolution, RecipientDirectory};
use mail::{
    Address, BodyFlags, BodyType, ClientInfo, DsnNotify, Envelope, LogLevel, MailEvent, QueueId, Recipient, ServerLog,
    Timestamp,
};
use sender_auth::DnsLookup;
use sender_auth::reports::destination::{
    ReportDestination, Unanswered, parse_destinations, tls_reports_to, verified_destination,
};
use sender_auth::reports::{
    CollectedReport, DueReport, ReportCollector, ReportKind, ReportResult, ReportSettings, ReportSummary, Reporter,
    compose_report, report_content,
};
use spool::{CommitError, Spool, SpoolEntry, SubmittedBody};
use tokio::runtime::Runtime;

/// How often the thread looks for reports that are due.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// A report that cannot be sent is tried again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1800);

/// What the thread works with, and a reload replaces.
pub struct ReportContext {
    /// Finds the mailboxes of destinations.
    pub directory: Arc<RecipientDirectory>,
    /// Signs reports; None: they are not signed.
    pub signer: Option<Arc<dyn NoticeSigner>>,
    /// The DNS, whose queries run on the thread's own runtime.
    pub dns: Arc<dyn DnsLookup>,
    /// Who reports.
    pub reporter: Reporter,
}

/// What the thread works with all its life.
pub struct ReportSenderParts {
    /// Has the counts.
    pub collector: ReportCollector,
    /// Takes the reports.
    pub spool: Arc<Spool>,
    /// Which reports are sent, and when.
    pub settings: ReportSettings,
    /// The log.
    pub log: Arc<dyn ServerLog>,
}

/// What counts and what sends.
pub struct RunningReports {
    /// Counts.
    pub collector: ReportCollector,
    /// Sends.
    pub sender: Arc<ReportSender>,
    /// The thread that sends.
    pub thread: ReportSenderThread,
}

impl RunningReports {
    /// What operators can ask.
    pub fn control_parts(&self) -> ReportParts {
        ReportParts { operator: self.sender.clone(), counters: self.collector.counters().clone() }
    }

    /// Ends both, after the report that is being sent.
    pub fn stop(self) {
        self.sender.stop(self.thread);
    }
}

/// A handle to the thread.
pub struct ReportSender {
    requests: Sender<SenderRequest>,
    collector: ReportCollector,
}

/// The thread; it uses the spool until it has ended.
pub struct ReportSenderThread(JoinHandle<()>);

enum SenderRequest {
    Send { domain: Box<str>, answer: Sender<Vec<SentReport>> },
    Reconfigure(Box<ReportContext>),
    Stop,
}

struct SendingThread {
    parts: ReportSenderParts,
    context: ReportContext,
    runtime: Runtime,
}

/// Where a report goes.
enum Destination {
    /// There, to these mailboxes.
    Wanted(ReportDestination, Vec<Recipient>),
    /// Not there, or nowhere.
    Unwanted(Option<Address>, ReportResult),
}

/// Why a report cannot be sent now.
#[derive(Debug, thiserror::Error)]
enum Delay {
    #[error("the DNS does not answer")]
    Dns,
    #[error("the directory does not answer: {0}")]
    Directory(String),
    #[error(transparent)]
    Spool(#[from] CommitError),
    #[error("cannot write the report: {0}")]
    Io(#[from] io::Error),
}

impl From<Unanswered> for Delay {
    fn from(_: Unanswered) -> Delay {
        Delay::Dns
    }
}

impl ReportSenderParts {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system has no thread or no event queue left.
    pub fn start(self, context: ReportContext) -> io::Result<RunningReports> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (requests, receiver) = mpsc::channel();
        let collector = self.collector.clone();
        let sender = Arc::new(ReportSender { requests, collector: collector.clone() });
        let sending = SendingThread { parts: self, context, runtime };
        let thread = thread::Builder::new().name("report-sender".into()).spawn(move || sending.run(&receiver))?;
        Ok(RunningReports { collector, sender, thread: ReportSenderThread(thread) })
    }
}

impl ReportSender {
    /// Switches to another configuration.
    pub fn reconfigure(&self, context: ReportContext) {
        // Only fails after the thread has been stopped.
        drop(self.requests.send(SenderRequest::Reconfigure(Box::new(context))));
    }

    /// Ends the thread, and waits for it; then ends the collector.
    fn stop(&self, thread: ReportSenderThread) {
        drop(self.requests.send(SenderRequest::Stop));
        // A panic has ended the process.
        drop(thread.0.join());
        self.collector.stop();
    }
}

impl ReportOperator for ReportSender {
    fn pending(&self) -> Option<Vec<ReportSummary>> {
        self.collector.with_store(|store| store.summaries())
    }

    fn send_now(&self, domain: &str) -> Option<Vec<SentReport>> {
        let (answer, answered) = mpsc::channel();
        self.requests.send(SenderRequest::Send { domain: domain.into(), answer }).ok()?;
        answered.recv().ok()
    }
}

impl SendingThread {
    fn run(mut self, requests: &Receiver<SenderRequest>) {
        let mut wait = Duration::ZERO;
        loop {
            match requests.recv_timeout(wait) {
                Ok(SenderRequest::Send { domain, answer }) => {
                    let reports = self.parts.collector.with_store(move |store| store.reports_of(now(), &domain));
                    let sent = reports.unwrap_or_default().into_iter().flat_map(|due| self.send(due)).collect();
                    // The caller may be gone.
                    drop(answer.send(sent));
                }
                Ok(SenderRequest::Reconfigure(context)) => self.context = *context,
                Ok(SenderRequest::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => wait = if self.send_next() { Duration::ZERO } else { POLL_INTERVAL },
            }
        }
    }

    /// Sends a report that is due; false if none is.
    fn send_next(&self) -> bool {
        let spread = self.parts.settings.spread;
        let due = self.parts.collector.with_store(move |store| store.next_due(now(), spread));
        due.flatten().map(|due| self.send(due)).is_some()
    }

    /// Sends a report, or has it tried again later.
    fn send(&self, due: DueReport) -> Vec<SentReport> {
        let (day, kind) = (due.day, due.report.subject.kind);
        let sent = |to, result| SentReport { day, kind, to, result };
        let log = &self.parts.log;
        match self.runtime.block_on(self.try_send(&due.report)) {
            Ok(results) => {
                results.iter().for_each(|(_, result)| self.parts.collector.counters().count_reports(*result, 1));
                if let Some(Err(error)) = self.parts.collector.with_store(move |store| store.finish(&due)) {
                    log.event(LogLevel::Warning, "cannot write that a report was sent", &[("error", &error)]);
                }
                results.into_iter().map(|(to, result)| sent(to, result.as_str())).collect()
            }
            Err(why) => {
                let fields: [(&'static str, &dyn Display); 3] =
                    [("kind", &kind.as_str()), ("domain", &due.report.subject.domain), ("error", &why)];
                log.event(LogLevel::Warning, "cannot send a report now", &fields);
                // If the collector has stopped, the next start tries it.
                let _ = self.parts.collector.with_store(move |store| store.postpone(&due, now() + RETRY_AFTER));
                vec![sent(None, "postponed")]
            }
        }
    }

    /// What became of the report at each destination. Nothing is sent before all destinations are known.
    async fn try_send(&self, report: &CollectedReport) -> Result<Vec<(Option<Address>, ReportResult)>, Delay> {
        if !self.parts.settings.includes(report.subject.kind) {
            return Ok(Vec::new());
        }
        let destinations = self.destinations(report).await?;
        let content = report_content(report, &self.context.reporter)?;
        let mut results = Vec::with_capacity(destinations.len());
        for destination in destinations {
            results.push(match destination {
                Destination::Unwanted(address, result) => (address, result),
                Destination::Wanted(destination, recipients) => {
                    let result = self.submit(report, &content, &destination, recipients).await?;
                    (Some(destination.address), result)
                }
            });
        }
        Ok(results)
    }

    /// At least one.
    async fn destinations(&self, report: &CollectedReport) -> Result<Vec<Destination>, Delay> {
        let (dns, domain) = (&*self.context.dns, &*report.subject.domain);
        let list = match report.subject.kind {
            ReportKind::Dmarc => report.policy.as_ref().map(|policy| policy.reports_to.clone()),
            ReportKind::Tls => tls_reports_to(dns, domain).await?,
        };
        let named = parse_destinations(&list.unwrap_or_default(), self.parts.settings.destinations_max);
        if named.is_empty() {
            return Ok(vec![Destination::Unwanted(None, ReportResult::NoDestination)]);
        }
        let mut destinations = Vec::with_capacity(named.len());
        for destination in named {
            let organization = report.policy.as_ref().map(|policy| &*policy.organization);
            let verified = match organization {
                Some(organization) => verified_destination(dns, &destination, domain, organization).await?,
                None => Some(destination.clone()),
            };
            destinations.push(match verified {
                None => Destination::Unwanted(Some(destination.address), ReportResult::Unverified),
                Some(destination) => self.resolved(destination).await?,
            });
        }
        Ok(destinations)
    }

    /// The mailboxes that an address resolves to, as RCPT would resolve it.
    async fn resolved(&self, destination: ReportDestination) -> Result<Destination, Delay> {
        // Nobody is notified if it fails (RFC 3461 section 6.1).
        let recipient = |address, original| Recipient {
            address,
            original,
            notify: DsnNotify::NEVER,
            orcpt: None,
            is_forwarded: false,
        };
        Ok(match self.context.directory.resolve(&destination.address).await {
            AddressResolution::Local(finals) => {
                let recipients = finals.into_iter().map(|found| recipient(found.address, found.original)).collect();
                Destination::Wanted(destination, recipients)
            }
            AddressResolution::Remote(address) => Destination::Wanted(destination, vec![recipient(address, None)]),
            AddressResolution::Unavailable(why) => return Err(Delay::Directory(why)),
            AddressResolution::Unknown
            | AddressResolution::TooDeep
            | AddressResolution::TooMany
            | AddressResolution::Returned(_)
            | AddressResolution::NotReturned(_) => {
                Destination::Unwanted(Some(destination.address), ReportResult::NoDestination)
            }
        })
    }

    /// Puts the message for one destination into the spool.
    async fn submit(
        &self,
        report: &CollectedReport,
        content: &[u8],
        destination: &ReportDestination,
        recipients: Vec<Recipient>,
    ) -> Result<ReportResult, Delay> {
        let (id, now) = (self.parts.spool.new_id(), now());
        let body = compose_report(report, &self.context.reporter, content, &destination.address, id, now);
        let prefix = match &self.context.signer {
            Some(signer) => signer.sign(&body).await,
            None => Vec::new(),
        };
        let octets = (prefix.len() + body.len()) as u64;
        if recipients.is_empty() {
            return Ok(ReportResult::NoDestination);
        }
        if destination.octets_max.is_some_and(|most| octets > most) {
            return Ok(ReportResult::TooLarge);
        }
        let event = received_event(id, &self.context.reporter.hostname, recipients.len(), octets, &body);
        let dot_lines = body.windows(2).any(|pair| pair == b"\n.");
        let flags = BodyFlags { dot_lines, eight_bit: false, ends_in_crlf: true };
        let envelope = report_envelope(&self.context.reporter.hostname, now, recipients);
        let content = SubmittedBody::Memory { prefix, body };
        match self.commit(SpoolEntry::Message { id, envelope, content, flags }) {
            Ok(()) => {
                self.parts.log.write(event);
                Ok(ReportResult::Sent)
            }
            Err(CommitError::TooLarge) => Ok(ReportResult::TooLarge),
            Err(error) => Err(error.into()),
        }
    }

    fn commit(&self, entry: SpoolEntry) -> Result<(), CommitError> {
        let (sender, committed) = mpsc::channel();
        // The thread waits for the result.
        self.parts.spool.submit(vec![entry], Box::new(move |result| drop(sender.send(result))));
        committed.recv().unwrap_or(Err(CommitError::Closed))
    }
}

fn report_envelope(hostname: &str, now: Timestamp, recipients: Vec<Recipient>) -> Envelope {
    Envelope {
        sender: None,
        recipients,
        accepted_at: now,
        client: ClientInfo { address: None, helo: hostname.into(), trusted: true },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
        content_filter: false,
    }
}

fn received_event(id: QueueId, hostname: &str, recipients: usize, size: u64, body: &[u8]) -> MailEvent {
    MailEvent::Received {
        id,
        client: None,
        helo: hostname.into(),
        sender: None,
        recipients,
        size,
        protocol: "report",
        security: None,
        user: None,
        // The subject would be our own text.
        header: mail::find_logged_header(body, false),
        auth: None,
    }
}

fn now() -> Timestamp {
    SystemTime::now().into()
}
