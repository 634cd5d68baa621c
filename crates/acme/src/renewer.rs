//! The thread that obtains and renews certificates, one after the other.
//!
//! | event | then |
//! |---|---|
//! | a certificate is missing, lacks a name, or is of another authority | it is obtained at once |
//! | a certificate has come to two thirds of its life (`schedule.rs`) | it is renewed |
//! | an attempt fails | the old certificate stays; the next attempt comes later each time, also after a restart |
//! | the configuration changes | an attempt in progress is dropped, and what is due is decided anew |
//! | an operator asks | the next attempt comes now |
//! | the server stops | an attempt in progress is dropped; the next start goes on with its order |
//!
//! Between attempts the thread sleeps.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use mail::{LogLevel, ServerLog, Timestamp, printable};
use net::{Certificate, ChallengeStore, TrustedRoots};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use crate::authority_client::AuthorityClient;
use crate::file_store::{FailedAttempts, FileStore, StoredState};
use crate::issuer::{IssueError, Issuer};
use crate::schedule::{RETRY_AFTER_MAX, next_renewal, renewal_time, retry_delay};
use crate::settings::{AcmeSettings, CertificateNames};

/// The time for an attempt.
const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(15 * 60);
/// The longest sleep: the clock may be set meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// The longest text of an error that is kept.
const ERROR_CHARS_MAX: usize = 500;

/// Which certificates are obtained, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewalPlan {
    /// How.
    pub settings: AcmeSettings,
    /// The names of each certificate; no two have the same first name.
    pub certificates: Vec<CertificateNames>,
}

/// What the thread works with all its life.
pub struct RenewerParts {
    /// Where listeners find the answers to challenges.
    pub challenges: Arc<ChallengeStore>,
    /// Called on the thread after a certificate was replaced on disk.
    pub on_issued: Box<dyn Fn() + Send>,
    /// A random number.
    pub random: fn() -> u64,
    /// The log.
    pub log: Arc<dyn ServerLog>,
}

/// A handle to the thread.
pub struct CertificateRenewer {
    requests: UnboundedSender<RenewerRequest>,
    random: fn() -> u64,
    statuses: Arc<Mutex<Vec<AcmeCertificateStatus>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A certificate as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeCertificateStatus {
    /// Its names.
    pub names: CertificateNames,
    /// Who issued the one in use; None: there is none yet.
    pub issuer: Option<Box<str>>,
    /// When it expires.
    pub expires: Option<Timestamp>,
    /// When the next attempt is due.
    pub next_attempt: Timestamp,
    /// Attempts that have failed since the last one that did not.
    pub failures: u32,
    /// The last error.
    pub error: Option<String>,
}

enum RenewerRequest {
    /// To this plan, whose certificates have been read.
    Reconfigure(Option<Box<RenewalPlan>>, Vec<ManagedCertificate>),
    Renew(Option<Box<str>>),
    Stop,
}

struct RenewalThread {
    parts: RenewerParts,
    plan: Option<Box<RenewalPlan>>,
    certificates: Vec<ManagedCertificate>,
    statuses: Arc<Mutex<Vec<AcmeCertificateStatus>>>,
}

/// A certificate of the plan.
struct ManagedCertificate {
    names: CertificateNames,
    certificate: Option<Certificate>,
    next_attempt: SystemTime,
    failures: u32,
    error: Option<String>,
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error(transparent)]
    Issue(#[from] IssueError),
    #[error("the attempt took longer than {} s", ATTEMPT_TIME_MAX.as_secs())]
    TimedOut,
}

impl RenewalPlan {
    fn read_certificates(&self, random: fn() -> u64) -> Vec<ManagedCertificate> {
        let now = SystemTime::now();
        let read = |names| ManagedCertificate::read(&self.settings, names, now, chance(random()));
        self.certificates.iter().map(read).collect()
    }
}

impl CertificateRenewer {
    /// Starts the thread, which does nothing before it has a plan.
    ///
    /// # Errors
    ///
    /// The system has no thread or no event queue left.
    pub fn start(parts: RenewerParts) -> io::Result<CertificateRenewer> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (requests, receiver) = unbounded_channel();
        let random = parts.random;
        let statuses = Arc::<Mutex<Vec<AcmeCertificateStatus>>>::default();
        let renewal = RenewalThread { parts, plan: None, certificates: Vec::new(), statuses: statuses.clone() };
        let run = move || run(renewal, &runtime, receiver);
        let thread = thread::Builder::new().name("acme".into()).spawn(run)?;
        Ok(CertificateRenewer { requests, random, statuses, thread: Mutex::new(Some(thread)) })
    }

    /// Switches to this plan; None: nothing is obtained. Reads what is known of its certificates, so this
    /// blocks on disk I/O.
    pub fn reconfigure(&self, plan: Option<RenewalPlan>) {
        let certificates = plan.as_ref().map(|plan| plan.read_certificates(self.random)).unwrap_or_default();
        *self.statuses.lock() = certificates.iter().map(ManagedCertificate::status).collect();
        self.request(RenewerRequest::Reconfigure(plan.map(Box::new), certificates));
    }

    /// Has the next attempt come now: for the certificate with this name, or for all. Returns how many
    /// these are.
    pub fn renew(&self, name: Option<&str>) -> usize {
        let is_meant = |status: &&AcmeCertificateStatus| name.is_none_or(|name| has_name(&status.names, name));
        let count = self.statuses.lock().iter().filter(is_meant).count();
        self.request(RenewerRequest::Renew(name.map(Into::into)));
        count
    }

    /// All certificates of the plan.
    pub fn statuses(&self) -> Vec<AcmeCertificateStatus> {
        self.statuses.lock().clone()
    }

    /// Ends the thread, and waits for it.
    pub fn stop(&self) {
        self.request(RenewerRequest::Stop);
        if let Some(thread) = self.thread.lock().take() {
            // A panic has ended the process.
            drop(thread.join());
        }
    }

    /// Only fails after the thread has been stopped.
    fn request(&self, request: RenewerRequest) {
        drop(self.requests.send(request));
    }
}

fn has_name(names: &CertificateNames, name: &str) -> bool {
    names.iter().any(|own| own.eq_ignore_ascii_case(name))
}

fn run(mut renewal: RenewalThread, runtime: &Runtime, mut requests: UnboundedReceiver<RenewerRequest>) {
    runtime.block_on(async {
        loop {
            let now = SystemTime::now();
            let request = match renewal.first_due(now) {
                Some(index) => tokio::select! {
                    biased;
                    request = requests.recv() => request,
                    () = renewal.attempt(index) => continue,
                },
                None => tokio::select! {
                    request = requests.recv() => request,
                    () = sleep(renewal.sleep_time(now)) => continue,
                },
            };
            match request {
                Some(RenewerRequest::Reconfigure(plan, certificates)) => renewal.set_plan(plan, certificates),
                Some(RenewerRequest::Renew(name)) => renewal.make_due(name.as_deref(), SystemTime::now()),
                Some(RenewerRequest::Stop) | None => return,
            }
        }
    });
}

impl RenewalThread {
    /// The certificate that has been due for the longest.
    fn first_due(&self, now: SystemTime) -> Option<usize> {
        let due = self.certificates.iter().enumerate().filter(|(_, managed)| managed.next_attempt <= now);
        due.min_by_key(|(_, managed)| managed.next_attempt).map(|(index, _)| index)
    }

    fn sleep_time(&self, now: SystemTime) -> Duration {
        let next = self.certificates.iter().map(|managed| managed.next_attempt).min();
        let wait = next.and_then(|next| next.duration_since(now).ok());
        wait.unwrap_or(SLEEP_MAX).min(SLEEP_MAX)
    }

    /// The same plan changes nothing.
    fn set_plan(&mut self, plan: Option<Box<RenewalPlan>>, certificates: Vec<ManagedCertificate>) {
        if plan != self.plan {
            (self.plan, self.certificates) = (plan, certificates);
        }
        self.publish();
    }

    fn make_due(&mut self, name: Option<&str>, now: SystemTime) {
        for managed in &mut self.certificates {
            if name.is_none_or(|name| has_name(&managed.names, name)) {
                managed.next_attempt = now;
            }
        }
        self.publish();
    }

    async fn attempt(&mut self, index: usize) {
        let Some(plan) = &self.plan else { return };
        let (settings, names) = (plan.settings.clone(), self.certificates[index].names.clone());
        let mut retry_after = None;
        let attempted = timeout(ATTEMPT_TIME_MAX, self.obtain(&settings, &names, &mut retry_after)).await;
        match attempted.unwrap_or(Err(AttemptError::TimedOut)) {
            Ok(certificate) => self.succeed(index, &settings, certificate),
            Err(error) => self.fail(index, &settings, &error, retry_after),
        }
        self.publish();
    }

    async fn obtain(
        &self,
        settings: &AcmeSettings,
        names: &CertificateNames,
        retry_after: &mut Option<Duration>,
    ) -> Result<Certificate, AttemptError> {
        let roots = settings.ca_file.as_deref().map_or_else(TrustedRoots::of_system, TrustedRoots::in_file);
        let client = AuthorityClient::new(&roots).map_err(IssueError::from)?;
        let issuer = Issuer { settings, challenges: &self.parts.challenges, client: client.clone() };
        let obtained = issuer.obtain(names).await;
        *retry_after = client.retry_after();
        Ok(obtained?)
    }

    fn succeed(&mut self, index: usize, settings: &AcmeSettings, certificate: Certificate) {
        let chance = chance((self.parts.random)());
        let managed = &mut self.certificates[index];
        let life = (certificate.not_before(), certificate.not_after());
        managed.next_attempt = next_renewal(life, settings.renew_before, SystemTime::now(), chance);
        (managed.failures, managed.error) = (0, None);
        let (names, issuer) = (managed.names.join(","), certificate.issuer().to_owned());
        let expires = Timestamp::from(certificate.not_after()).to_rfc3339();
        managed.certificate = Some(certificate);
        let fields: [(&'static str, &dyn Display); 3] = [("names", &names), ("issuer", &issuer), ("expires", &expires)];
        self.parts.log.event(LogLevel::Info, "obtained a certificate", &fields);
        let state = StoredState { issued_by: Some(settings.directory.to_string()), failed: None };
        self.save(index, settings, &state);
        (self.parts.on_issued)();
    }

    fn fail(&mut self, index: usize, settings: &AcmeSettings, error: &AttemptError, retry_after: Option<Duration>) {
        let chance = chance((self.parts.random)());
        let managed = &mut self.certificates[index];
        managed.failures = managed.failures.saturating_add(1);
        managed.next_attempt = SystemTime::now() + retry_delay(managed.failures, retry_after, chance);
        let error: String = printable(&error.to_string()).chars().take(ERROR_CHARS_MAX).collect();
        managed.error = Some(error.clone());
        let names = managed.names.join(",");
        let next = Timestamp::from(managed.next_attempt).to_rfc3339();
        let fields: [(&'static str, &dyn Display); 3] = [("names", &names), ("error", &error), ("next_attempt", &next)];
        self.parts.log.event(LogLevel::Warning, "cannot obtain a certificate", &fields);
        let failed = FailedAttempts {
            directory: settings.directory.to_string(),
            names: managed.names.clone(),
            count: managed.failures,
            next_attempt: seconds(managed.next_attempt),
            error,
        };
        let issued_by = FileStore(settings).state(&managed.names).issued_by;
        self.save(index, settings, &StoredState { issued_by, failed: Some(failed) });
    }

    fn save(&self, index: usize, settings: &AcmeSettings, state: &StoredState) {
        let names = &self.certificates[index].names;
        if let Err(error) = FileStore(settings).save_state(names, state) {
            let text = "cannot remember the attempt at a certificate; a restart will repeat it";
            self.parts.log.event(LogLevel::Warning, text, &[("names", &names.join(",")), ("error", &error)]);
        }
    }

    fn publish(&self) {
        *self.statuses.lock() = self.certificates.iter().map(ManagedCertificate::status).collect();
    }
}

impl ManagedCertificate {
    /// Decides from the files when the next attempt is due.
    fn read(settings: &AcmeSettings, names: &CertificateNames, now: SystemTime, chance: f64) -> ManagedCertificate {
        let store = FileStore(settings);
        let directory = settings.directory.to_string();
        let StoredState { issued_by, failed } = store.state(names);
        let certificate = store.certificate(names);
        let is_what_is_wanted = |certificate: &&Certificate| {
            let is_of_another = issued_by.as_ref().is_some_and(|issued_by| *issued_by != directory);
            !is_of_another && names.iter().all(|name| certificate.names().contains(name))
        };
        let renewal = certificate.as_ref().filter(is_what_is_wanted).map(|certificate| {
            renewal_time(certificate.not_before(), certificate.not_after(), settings.renew_before, chance)
        });
        let failed = failed.filter(|failed| failed.directory == directory && failed.names == *names);
        // A clock that was wrong then must not delay it for years.
        let retry = failed.as_ref().map(|failed| time(failed.next_attempt).min(now + RETRY_AFTER_MAX));
        ManagedCertificate {
            names: names.clone(),
            certificate,
            next_attempt: renewal.unwrap_or(now).max(retry.unwrap_or(SystemTime::UNIX_EPOCH)),
            failures: failed.as_ref().map_or(0, |failed| failed.count),
            error: failed.map(|failed| failed.error),
        }
    }

    fn status(&self) -> AcmeCertificateStatus {
        AcmeCertificateStatus {
            names: self.names.clone(),
            issuer: self.certificate.as_ref().map(|certificate| certificate.issuer().into()),
            expires: self.certificate.as_ref().map(|certificate| certificate.not_after().into()),
            next_attempt: self.next_attempt.into(),
            failures: self.failures,
            error: self.error.clone(),
        }
    }
}

/// A number from 0 to 1.
fn chance(random: u64) -> f64 {
    random as f64 / u64::MAX as f64
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use tempfile::TempDir;

    use super::*;
    use crate::settings::ChallengeMethod;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    struct Setting {
        _folder: TempDir,
        settings: AcmeSettings,
        names: CertificateNames,
    }

    /// A certificate for these names, valid in the year 2027.
    fn with_certificate(names: &[&str], issued_by: Option<&str>) -> Setting {
        let folder = TempDir::new().unwrap();
        let settings = AcmeSettings {
            directory: "https://ca.example/dir".parse().unwrap(),
            contacts: Vec::new(),
            challenge: ChallengeMethod::Http01,
            ca_file: None,
            folder: folder.path().to_owned(),
            renew_before: Some(30 * DAY),
            reuses_key: true,
            external_account: None,
        };
        let names: CertificateNames = names.iter().map(|name| (*name).into()).collect();
        let store = FileStore(&settings);
        if let Some(issued_by) = issued_by {
            let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
            params.not_before = date_time_ymd(2027, 1, 1);
            params.not_after = date_time_ymd(2028, 1, 1);
            let key = KeyPair::generate().unwrap();
            let chain = params.self_signed(&key).unwrap().pem();
            store.install(&names, &chain, &key.serialize_pem(), new_year()).unwrap();
            store.save_state(&names, &StoredState { issued_by: Some(issued_by.into()), failed: None }).unwrap();
        }
        Setting { _folder: folder, settings, names }
    }

    /// The start of 2027.
    fn new_year() -> SystemTime {
        time(1_798_761_600)
    }

    fn next_attempt(setting: &Setting, names: &CertificateNames) -> SystemTime {
        ManagedCertificate::read(&setting.settings, names, new_year(), 0.0).next_attempt
    }

    #[test]
    fn a_certificate_is_due_when_it_is_missing_or_not_the_one_that_is_wanted() {
        let current = with_certificate(&["a.example"], Some("https://ca.example/dir"));
        assert_eq!(next_attempt(&current, &current.names), new_year() + 335 * DAY);
        let more: CertificateNames = ["a.example".into(), "b.example".into()].into();
        assert_eq!(next_attempt(&current, &more), new_year(), "a new name");
        let missing = with_certificate(&["a.example"], None);
        assert_eq!(next_attempt(&missing, &missing.names), new_year());
        let other = with_certificate(&["a.example"], Some("https://staging.example/dir"));
        assert_eq!(next_attempt(&other, &other.names), new_year(), "another authority");
    }

    #[test]
    fn a_restart_does_not_repeat_what_has_just_failed() {
        let missing = with_certificate(&["a.example"], None);
        let failed = |next_attempt, directory: &str| {
            let (directory, names) = (directory.to_owned(), missing.names.clone());
            let failed = FailedAttempts { directory, names, count: 3, next_attempt, error: "refused".into() };
            let state = StoredState { issued_by: None, failed: Some(failed) };
            FileStore(&missing.settings).save_state(&missing.names, &state).unwrap();
            ManagedCertificate::read(&missing.settings, &missing.names, new_year(), 0.0)
        };
        let soon = new_year() + DAY;
        let managed = failed(seconds(soon), "https://ca.example/dir");
        assert_eq!((managed.next_attempt, managed.failures, managed.error.as_deref()), (soon, 3, Some("refused")));
        let managed = failed(seconds(new_year() + 5000 * DAY), "https://ca.example/dir");
        assert_eq!(managed.next_attempt, new_year() + 7 * DAY, "the clock was wrong");
        let managed = failed(seconds(soon), "https://other.example/dir");
        assert_eq!((managed.next_attempt, managed.failures), (new_year(), 0), "another authority");
    }
}
