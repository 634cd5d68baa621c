//! Runs of a real server: it is started with one value of what is varied, put under load, and removed with all of its
//! data.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use compare::error::CompareError;
use compare::interrupt::Interrupt;
use compare::load_report::LoadReport;
use compare::measure::{LoadOutcome, measure_run_with_late_work, settle};
use compare::process::{Launch, Server, run_command};
use compare::ready::Ready;
use compare::result::Run;
use config::Config;
use tempfile::TempDir;
use toml::Table;

use super::configuration::{Place, derive, pages_folder};
use super::delivery::{await_empty_queue, delivered_messages};
use super::sink_report::sink_messages;
use super::{Load, Scenario, path_text};
use crate::setting_path::parse_value;
use crate::target::Target;
use crate::trial::{HostChanges, Trial, TrialError};

/// How long a server may take to start.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// A server that accepts or delivers nothing more only has its segments to prepare.
const LATE_WORK_TIME: Duration = Duration::from_millis(100);
/// How long a sink may take to end.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);
/// The threads of a load.
const LOAD_THREADS: u32 = 1;
/// What a load may take longer than it was told: work in progress is finished.
const LOAD_TIME_EXTRA: Duration = Duration::from_secs(120);
/// A run waits this many times as long as its load lasts until everything is delivered. What is not delivered then
/// does not count.
const DELIVERY_TIMES: u32 = 5;
/// The pages of `read-http`, and the bytes of each.
const PAGES: usize = 100;
const PAGE_OCTETS: usize = 10_000;

/// Counts the queued recipients of the server with this control socket.
pub type QueueCounter = Box<dyn Fn(&Path) -> Result<u64, String>>;

/// How each run is done.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// What the server does.
    pub scenario: Scenario,
    /// The program that is the server and the load: `mailrace`.
    pub program: PathBuf,
    /// The operator's configuration, which was checked.
    pub configuration: Table,
    /// The folder in which runs have their folders; None: beside this lane of the operator's spool.
    pub folder: Option<PathBuf>,
    /// A lane of the operator's spool.
    pub lane: PathBuf,
    /// The connections of the load.
    pub connections: u64,
    /// How long the load lasts.
    pub time: Duration,
    /// How long the load waits for each reply; None: as long as `mailrace bench` does.
    pub timeout: Option<Duration>,
    /// The recipients of `lookup`.
    pub recipients_from: Option<PathBuf>,
}

/// Runs servers. Its folder is removed with it, and values of the host are put back.
pub struct ServerTrial {
    settings: RunSettings,
    target: Target,
    folder: TempDir,
    working_folder: PathBuf,
    interrupt: Interrupt,
    queued: QueueCounter,
    changes: Option<Box<dyn HostChanges>>,
}

impl ServerTrial {
    /// Makes the folder of the runs. `changes` are needed if the target is a value of the host, which is otherwise not
    /// changed.
    ///
    /// # Errors
    ///
    /// The folder cannot be made, or the scenario needs what the configuration lacks.
    pub fn new(
        settings: RunSettings,
        target: Target,
        interrupt: Interrupt,
        queued: QueueCounter,
        changes: Option<Box<dyn HostChanges>>,
    ) -> Result<ServerTrial, TrialError> {
        check_scenario(&settings)?;
        let working_folder = std::env::current_dir().map_err(failed("finding the working folder"))?;
        let parent = match &settings.folder {
            Some(folder) => chosen_folder(&working_folder.join(folder))?,
            None => folder_beside(&settings.lane, can_write_safely)?,
        };
        let folder = make_folder(&parent)?;
        Ok(ServerTrial { settings, target, folder, working_folder, interrupt, queued, changes })
    }

    /// Checks that the host takes this value, or that the server's configuration is valid with it, without a run.
    ///
    /// # Errors
    ///
    /// It does not or is not; the text has the place and the reason.
    pub fn check(&self, value: &str) -> Result<(), TrialError> {
        self.changes.as_ref().map_or(Ok(()), |changes| changes.check(value)).map_err(TrialError::Refused)?;
        let sink = (self.settings.scenario == Scenario::Relay).then_some(25);
        let text = self.configuration(value, &self.run_folder(), sink)?.to_string();
        match Config::parse(&text, &format!("the configuration of a run with {value}"), "localhost") {
            Ok(_) => Ok(()),
            Err(errors) => Err(TrialError::Failed(errors.to_string())),
        }
    }

    /// The command line of the load, with port 0 for the server's.
    #[must_use]
    pub fn load_command(&self) -> String {
        let folder = self.run_folder();
        format!("mailrace {}", self.load_words(0, self.settings.connections, &folder).join(" "))
    }

    /// The configuration of the server, before anything is varied, without its secrets.
    ///
    /// # Errors
    ///
    /// None in practice: the operator's configuration was checked.
    pub fn base_configuration(&self) -> Result<String, TrialError> {
        let table = self.isolated(&self.settings.configuration, &self.run_folder(), None)?;
        Ok(config::without_secrets(&table.to_string()))
    }

    /// Puts values of the host back, and removes the folder.
    ///
    /// # Errors
    ///
    /// A value could not be put back: what is to be done, as text.
    pub fn finish(self) -> Result<(), TrialError> {
        let put_back = self.changes.map_or(Ok(()), |changes| changes.put_back());
        put_back.map_err(|error| TrialError::Failed(format!("putting values of the host back: {error}")))?;
        self.folder.close().map_err(failed("removing the folder of the runs"))
    }

    fn run_folder(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn isolated(&self, operator: &Table, folder: &Path, sink: Option<u16>) -> Result<Table, TrialError> {
        let is_root = rustix::process::geteuid().is_root();
        let place = Place { folder, is_root, working_folder: &self.working_folder, sink };
        derive(operator, self.settings.scenario, &place).map_err(TrialError::Failed)
    }

    /// The value is set before the run is isolated, so that no value leads out of it: not to a real next hop, nor into
    /// real mailboxes.
    fn configuration(&self, value: &str, folder: &Path, sink: Option<u16>) -> Result<Table, TrialError> {
        let mut operator = self.settings.configuration.clone();
        let Target::Setting(path) = &self.target else { return self.isolated(&operator, folder, sink) };
        let value = parse_value(value);
        path.set(&mut operator, value.clone()).map_err(TrialError::Failed)?;
        let table = self.isolated(&operator, folder, sink)?;
        match path.find(&table) == Some(&value) {
            true => Ok(table),
            false => Err(TrialError::Failed(format!(
                "{path} cannot be measured with {}: its runs leave it out, or have a value of their own, so that nothing \
                 leads out of them",
                self.settings.scenario
            ))),
        }
    }

    fn load_words(&self, port: u16, connections: u64, folder: &Path) -> Vec<String> {
        let recipients_from = self.settings.recipients_from.as_ref().map(|file| self.working_folder.join(file));
        let load = Load {
            connections,
            time: self.settings.time,
            timeout: self.settings.timeout,
            recipients_from: recipients_from.as_deref(),
            urls: &urls_file(folder),
        };
        self.settings.scenario.load(port, &load, folder)
    }

    fn run_in(&self, folder: &Path, value: &str) -> Result<Run, CompareError> {
        let (sink, sink_port) = match self.settings.scenario {
            Scenario::Relay => self.start_sink(folder).map(|(sink, port)| (Some(sink), Some(port)))?,
            _ => (None, None),
        };
        let configuration = self.configuration(value, folder, sink_port);
        let text = configuration.map_err(|error| CompareError::Failed(error.to_string()))?.to_string();
        write_private(&folder.join("mailrace.toml"), &text)?;
        let (mut server, port) = self.start_server(folder, value)?;
        settle(Duration::ZERO, &self.interrupt)?;
        let load = || self.put_under_load(port, folder, value, sink);
        let run = measure_run_with_late_work(Some(server.group()), folder, &self.interrupt, LATE_WORK_TIME, load)?;
        server.check_running()?;
        // Its data is thrown away, so nothing has to be finished.
        server.stop(Duration::ZERO)?;
        Ok(run)
    }

    /// Only the kernel knows which numbers it takes, so a value is refused here that passed [`ServerTrial::check`].
    fn change_host(&mut self, value: &str) -> Result<(), TrialError> {
        match (&self.target, &mut self.changes) {
            (Target::Host(_), Some(changes)) => changes
                .set(value)
                .map_err(|error| TrialError::Refused(format!("this host does not take the value {value}: {error}"))),
            _ => Ok(()),
        }
    }

    fn start_sink(&self, folder: &Path) -> Result<(Server, u16), CompareError> {
        let words = ["bench", "sink", "--listen", "127.0.0.1:0", "--json"].map(str::to_owned);
        self.start("sink", &self.command(words), folder, "listening on 127.0.0.1:{port}")
    }

    fn start_server(&self, folder: &Path, value: &str) -> Result<(Server, u16), CompareError> {
        let mut argv = match &self.target {
            Target::Environment(name) => vec!["env".to_owned(), format!("{name}={value}")],
            _ => Vec::new(),
        };
        argv.extend(self.command([
            "serve".to_owned(),
            "--config".to_owned(),
            path_text(&folder.join("mailrace.toml")),
        ]));
        let protocol = self.settings.scenario.protocol();
        if self.settings.scenario == Scenario::ReadHttp {
            make_pages(folder)?;
        }
        let (server, port) = self.start(
            "mailrace",
            &argv,
            folder,
            &format!("listening protocol={protocol} address=127.0.0.1:{{port}}"),
        )?;
        if self.settings.scenario == Scenario::ReadHttp {
            let url = |page| format!("http://127.0.0.1:{port}/{page}\n");
            write(&urls_file(folder), &(0..PAGES).map(url).collect::<String>())?;
        }
        Ok((server, port))
    }

    fn start(&self, name: &str, argv: &[String], folder: &Path, line: &str) -> Result<(Server, u16), CompareError> {
        let mut server = Server::start(&Launch { name, argv, folder, user: None })?;
        let port = server.await_ready(&Ready::Logs(line.to_owned()), START_TIME_MAX, &self.interrupt)?;
        let port = port.ok_or_else(|| server.failure("ended before it was ready"))?;
        Ok((server, port))
    }

    fn command(&self, words: impl IntoIterator<Item = String>) -> Vec<String> {
        std::iter::once(path_text(&self.settings.program)).chain(words).collect()
    }

    /// Runs the load, and waits until what it sent is delivered if that is the scenario.
    fn put_under_load(
        &self,
        port: u16,
        folder: &Path,
        value: &str,
        sink: Option<Server>,
    ) -> Result<LoadOutcome, CompareError> {
        let connections = match self.target {
            Target::Sessions => value.parse().map_err(|_| fault("expected a number of sessions"))?,
            _ => self.settings.connections,
        };
        let argv = self.command(self.load_words(port, connections, folder));
        let begun = Instant::now();
        let launch = Launch { name: "load", argv: &argv, folder, user: None };
        let loaded = run_command(&launch, self.settings.time + LOAD_TIME_EXTRA, &self.interrupt);
        let (output, cpu_seconds) = match loaded {
            Ok(done) => (done.output, done.cpu_seconds),
            // Its report says which replies were not as expected.
            Err(CompareError::Failed(text)) => (report_of_failed_load(folder).ok_or_else(|| fault(&text))?, 0.0),
            Err(error) => return Err(error),
        };
        let report = LoadReport::parse(&output).map_err(|text| fault(&format!("the output of the load is {text}")))?;
        if let Some(text) = report.fault() {
            return Err(fault(&text));
        }
        let outcome = report.outcome(cpu_seconds, LOAD_THREADS);
        if !self.settings.scenario.delivers() {
            return Ok(outcome);
        }
        let data = folder.join("data");
        let time_max = self.settings.time * DELIVERY_TIMES;
        let time = await_empty_queue(&self.queued, &data.join("control.sock"), begun, time_max, &self.interrupt)?;
        let count = match sink {
            Some(sink) => received_messages(sink, folder)?,
            None => delivered_messages(&data)?,
        };
        Ok(LoadOutcome { count, seconds: time.as_secs_f64(), ..outcome })
    }
}

impl Trial for ServerTrial {
    fn run(&mut self, value: &str) -> Result<Run, TrialError> {
        self.change_host(value)?;
        let folder = self.run_folder();
        fs::create_dir(&folder).map_err(failed("making the folder of a run"))?;
        let run = self.run_in(&folder, value);
        let removed = fs::remove_dir_all(&folder);
        let run = run.map_err(|error| match error {
            CompareError::Interrupted => TrialError::Stopped,
            error => TrialError::Failed(format!("a run with {value} failed: {}", with_cause(&error))),
        })?;
        removed.map_err(failed("removing the folder of a run"))?;
        Ok(run)
    }
}

/// `lookup` needs what only the operator can give.
fn check_scenario(settings: &RunSettings) -> Result<(), TrialError> {
    if settings.scenario != Scenario::Lookup {
        return Ok(());
    }
    if !settings.configuration.contains_key("table") {
        return Err(TrialError::Refused("lookup measures tables, but the configuration has no [[table]]".to_owned()));
    }
    match &settings.recipients_from {
        Some(file) => fs::File::open(file).map(drop).map_err(|error| {
            let shown = file.display();
            TrialError::Refused(format!("--recipients-from {shown}: {error}; name a file with an address in each line"))
        }),
        None => Err(TrialError::Refused(
            "lookup needs addresses that the tables have: give a file with --recipients-from".to_owned(),
        )),
    }
}

/// The folder that the operator named, without links, which their owners could lead elsewhere.
fn chosen_folder(folder: &Path) -> Result<PathBuf, TrialError> {
    let unusable = |error: std::io::Error| {
        let shown = folder.display();
        TrialError::Refused(format!("--folder {shown}: {error}; name a folder that exists, on the disk of the spool"))
    };
    let folder = fs::canonicalize(folder).map_err(unusable)?;
    match can_write_safely(&folder).map_err(unusable)? {
        true => Ok(folder),
        false => Err(TrialError::Refused(format!(
            "{}, or a folder above it, can be replaced by another user, and what root writes there too: name a folder of \
             root's with --folder",
            folder.display()
        ))),
    }
}

/// A folder on the file system of the lane, which need not exist: the nearest above it, without links, in which this
/// process can write safely.
fn folder_beside(lane: &Path, is_safe: fn(&Path) -> std::io::Result<bool>) -> Result<PathBuf, TrialError> {
    let looking = || failed("looking at the spool");
    let lane = std::path::absolute(lane).map_err(failed("finding the spool"))?;
    let existing = lane.ancestors().find(|folder| folder.is_dir()).unwrap_or(&lane);
    let is_lane = existing == lane;
    let existing = fs::canonicalize(existing).map_err(looking())?;
    let device = |folder: &Path| fs::metadata(folder).map(|found| found.dev()).map_err(looking());
    let disk = device(&existing)?;
    for folder in existing.ancestors().skip(usize::from(is_lane)) {
        if device(folder)? != disk {
            break;
        }
        if is_safe(folder).map_err(looking())? {
            return Ok(folder.to_owned());
        }
    }
    Err(TrialError::Refused(format!(
        "the file system of {} has no folder above it in which runs can have theirs, of this user alone: name one on that \
         disk with --folder",
        lane.display()
    )))
}

/// Whether no other user can replace what this process makes in a folder, whose path has no links. Only root has to ask:
/// everybody else writes with rights that the owner of the folder gave.
fn can_write_safely(folder: &Path) -> std::io::Result<bool> {
    if !rustix::process::geteuid().is_root() {
        return Ok(true);
    }
    for folder in folder.ancestors() {
        if !is_roots_alone(&fs::metadata(folder)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// In a folder with the sticky bit, only the owner of a file can rename or remove it.
fn is_roots_alone(folder: &fs::Metadata) -> bool {
    let (is_writable, is_sticky) = (folder.mode() & 0o022 != 0, folder.mode() & 0o1000 != 0);
    folder.uid() == 0 && (!is_writable || is_sticky)
}

/// A new folder that other users can enter, since the server may give up root.
fn make_folder(parent: &Path) -> Result<TempDir, TrialError> {
    let made = tempfile::Builder::new().prefix("mailrace-tune-").tempdir_in(parent).and_then(|folder| {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        Ok(folder)
    });
    made.map_err(|error| {
        let parent = parent.display();
        TrialError::Refused(format!(
            "making a folder in {parent}: {error}; name another one on that disk with --folder"
        ))
    })
}

fn make_pages(folder: &Path) -> Result<(), CompareError> {
    let pages = pages_folder(folder);
    fs::create_dir(&pages).map_err(CompareError::system("making the folder of the pages"))?;
    let text = "a page \n".repeat(PAGE_OCTETS / 8);
    (0..PAGES).try_for_each(|page| write(&pages.join(page.to_string()), &text))
}

fn urls_file(folder: &Path) -> PathBuf {
    folder.join("urls")
}

fn write(path: &Path, text: &str) -> Result<(), CompareError> {
    fs::write(path, text).map_err(CompareError::system(format!("writing {}", path.display())))
}

/// Writes a new file that only this user can read: the configuration has the passwords of tables. The server reads it
/// before it gives up root.
fn write_private(path: &Path, text: &str) -> Result<(), CompareError> {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = created.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(CompareError::system(format!("writing {}", path.display())))
}

fn report_of_failed_load(folder: &Path) -> Option<String> {
    fs::read_to_string(folder.join("load.out")).ok().filter(|output| !output.is_empty())
}

/// Ends the sink, and returns how many messages it got.
fn received_messages(sink: Server, folder: &Path) -> Result<u64, CompareError> {
    sink.stop(STOP_TIME_MAX)?;
    let log = fs::read_to_string(folder.join("sink.log")).map_err(CompareError::system("reading the sink's report"))?;
    sink_messages(&log).map_err(|text| fault(&text))
}

fn fault(text: &str) -> CompareError {
    CompareError::Failed(text.to_owned())
}

fn failed(doing: &str) -> impl FnOnce(std::io::Error) -> TrialError {
    let doing = doing.to_owned();
    move |error| TrialError::Failed(format!("{doing}: {error}"))
}

fn with_cause(error: &CompareError) -> String {
    let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::HostValue;

    fn settings(scenario: Scenario, configuration: &str, folder: &Path) -> RunSettings {
        RunSettings {
            scenario,
            program: "/nowhere/mailrace".into(),
            configuration: configuration.parse().unwrap(),
            folder: None,
            lane: folder.join("spool"),
            connections: 10,
            time: Duration::from_secs(1),
            timeout: None,
            recipients_from: None,
        }
    }

    fn trial(scenario: Scenario, configuration: &str, target: &str, folder: &Path) -> Result<ServerTrial, TrialError> {
        let target = Target::Setting(target.parse().unwrap());
        let queued: QueueCounter = Box::new(|_| Ok(0));
        ServerTrial::new(settings(scenario, configuration, folder), target, Interrupt::default(), queued, None)
    }

    #[test]
    fn a_value_is_checked_before_anything_runs() {
        let folder = tempfile::tempdir().unwrap();
        let trial = trial(Scenario::AcceptMany, "", "limits.sessions", folder.path()).unwrap();
        assert_eq!(trial.check("50"), Ok(()));
        let error = trial.check("many").unwrap_err().to_string();
        assert!(error.contains("a run with many") && error.contains("sessions"), "{error}");
        let unknown = self::trial(Scenario::AcceptMany, "", "limits.session", folder.path()).unwrap();
        assert!(unknown.check("50").unwrap_err().to_string().contains("sessions"), "it says what is known");
    }

    #[test]
    fn no_value_leads_out_of_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let table = "[[table]]\nname = \"people\"\ntype = \"static\"\nvalues = [\"a\"]\n";
        for (scenario, setting, value) in [
            (Scenario::Relay, "transport.smtp.next_hop", "other.example:25"),
            (Scenario::Relay, "transport.smtp", "{ next_hop = \"other.example:25\" }"),
            (Scenario::Relay, "transport.smtp.type", "lmtp"),
            (Scenario::Relay, "route.\"*\".next_hop", "other.example:25"),
            (Scenario::Relay, "hostname", "other.example"),
            (Scenario::Relay, "domain.\"bench.test\".transport", "maildir"),
            (Scenario::DeliverMaildir, "transport.maildir.path", "/srv/mail/{local}"),
            (Scenario::DeliverMaildir, "transport.maildir.places", "people"),
            (Scenario::DeliverMaildir, "transport.maildir.root", "/srv/mail"),
            (Scenario::Lookup, "queue.local.concurrency", "5"),
            (Scenario::Lookup, "queue.standard.concurrency", "5"),
            (Scenario::AcceptMany, "queue.bulk.concurrency", "5"),
            (Scenario::AcceptMany, "limits", "5"),
            (Scenario::AcceptMany, "spool", "{ lanes = [\"/srv/a\"] }"),
        ] {
            let recipients_from = Some("/dev/null".into());
            let settings = RunSettings { recipients_from, ..settings(scenario, table, folder.path()) };
            let target = Target::Setting(setting.parse().unwrap());
            let queued: QueueCounter = Box::new(|_| Ok(0));
            let trial = ServerTrial::new(settings, target, Interrupt::default(), queued, None).unwrap();
            let error = trial.check(value).unwrap_err().to_string();
            assert!(error.contains("cannot be measured") || error.contains("is no section"), "{setting}: {error}");
        }
    }

    #[test]
    fn runs_have_their_folder_beside_the_spool_and_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("spool")).unwrap();
        let mut trial = trial(Scenario::AcceptMany, "", "threads", folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        assert!(trial.base_configuration().unwrap().contains(&path_text(folder.path())));
        assert!(matches!(trial.run("1"), Err(TrialError::Failed(text)) if text.starts_with("a run with 1 failed: ")));
        trial.finish().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_others_can_replace_is_passed_by() {
        let folder = tempfile::tempdir().unwrap();
        let lane = folder.path().join("mail/spool");
        fs::create_dir_all(&lane).unwrap();
        let is_safe = |path: &Path| Ok(!path.ends_with("mail"));
        assert_eq!(folder_beside(&lane, is_safe).unwrap(), folder.path());
        assert_eq!(folder_beside(&lane.join("new"), is_safe).unwrap(), lane);
        assert_eq!(folder_beside(&folder.path().join("mail/new"), is_safe).unwrap(), folder.path());
        let error = folder_beside(&lane, |_| Ok(false)).unwrap_err().to_string();
        assert!(error.contains("--folder"), "{error}");
        // The owner of a link could lead it elsewhere later.
        std::os::unix::fs::symlink(&lane, folder.path().join("link")).unwrap();
        assert_eq!(folder_beside(&folder.path().join("link"), is_safe).unwrap(), folder.path());
        assert_eq!(chosen_folder(&folder.path().join("link")).unwrap(), lane);
    }

    /// Only root can give a folder away, and only for root is it dangerous.
    #[test]
    fn root_writes_only_where_others_cannot() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        assert!(can_write_safely(&inner).unwrap());
        if !rustix::process::geteuid().is_root() {
            return;
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!can_write_safely(&inner).unwrap(), "others can rename it");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(can_write_safely(&inner).unwrap());
        std::os::unix::fs::chown(folder.path(), Some(65534), None).unwrap();
        assert!(!can_write_safely(&inner).unwrap(), "its owner can rename it");
        let chosen = RunSettings { folder: Some(inner), ..settings(Scenario::AcceptMany, "", folder.path()) };
        let queued: QueueCounter = Box::new(|_| Ok(0));
        let refused = ServerTrial::new(chosen, Target::Sessions, Interrupt::default(), queued, None).err().unwrap();
        assert!(refused.to_string().contains("another user"), "{refused}");
    }

    #[test]
    fn secrets_are_not_shown_and_only_this_user_can_read_them() {
        let folder = tempfile::tempdir().unwrap();
        let table = "[[table]]\nname = \"people\"\ntype = \"ldap\"\nurl = \"ldap://user:hunter2@127.0.0.1\"\n\
                     base = \"o=x\"\npassword = \"hunter2\"\n";
        let recipients_from = Some("/dev/null".into());
        let settings = RunSettings { recipients_from, ..settings(Scenario::Lookup, table, folder.path()) };
        let queued: QueueCounter = Box::new(|_| Ok(0));
        let trial = ServerTrial::new(settings, Target::Sessions, Interrupt::default(), queued, None).unwrap();
        let shown = trial.base_configuration().unwrap();
        assert!(shown.contains("people") && !shown.contains("hunter2"), "{shown}");
        let path = folder.path().join("mailrace.toml");
        write_private(&path, "a").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(write_private(&path, "b").is_err(), "it is not replaced");
    }

    #[test]
    fn lookup_needs_tables_and_addresses() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = |configuration, recipients_from: Option<&str>| {
            let recipients_from = recipients_from.map(PathBuf::from);
            let settings = RunSettings { recipients_from, ..settings(Scenario::Lookup, configuration, folder.path()) };
            let queued: QueueCounter = Box::new(|_| Ok(0));
            match ServerTrial::new(settings, Target::Sessions, Interrupt::default(), queued, None) {
                Err(TrialError::Refused(text)) => text,
                other => panic!("{:?}", other.err()),
            }
        };
        let table = "[[table]]\nname = \"a\"\ntype = \"static\"\n";
        assert!(refusal("", None).contains("no [[table]]"));
        assert!(refusal(table, None).contains("give a file with --recipients-from"));
        assert!(
            refusal(table, Some("/nowhere/addresses")).starts_with("--recipients-from /nowhere/addresses: No such")
        );
    }

    #[test]
    fn a_folder_that_does_not_exist_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let text = chosen_folder(&missing).unwrap_err().to_string();
        assert!(text.starts_with(&format!("--folder {}: No such file", missing.display())), "{text}");
    }

    /// Two failed runs said that the value fails, and named another reason than the kernel's.
    #[test]
    fn a_value_that_the_kernel_refuses_ends_the_measurement_at_once_with_its_reason() {
        struct Refusing;
        impl HostChanges for Refusing {
            fn check(&self, _: &str) -> Result<(), String> {
                Ok(())
            }
            fn set(&mut self, _: &str) -> Result<(), String> {
                Err("setting /proc/sys/vm/swappiness: Invalid argument".to_owned())
            }
            fn put_back(self: Box<Self>) -> Result<(), String> {
                Ok(())
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let value = HostValue { knob: "vm.swappiness".to_owned(), files: vec![String::new()], word: None };
        let queued: QueueCounter = Box::new(|_| Ok(0));
        let settings = settings(Scenario::AcceptOne, "", folder.path());
        let changes: Box<dyn HostChanges> = Box::new(Refusing);
        let mut trial =
            ServerTrial::new(settings, Target::Host(value), Interrupt::default(), queued, Some(changes)).unwrap();
        let text = "this host does not take the value 500: setting /proc/sys/vm/swappiness: Invalid argument";
        assert_eq!(trial.run("500"), Err(TrialError::Refused(text.to_owned())));
        assert!(!trial.run_folder().exists(), "no run has begun");
    }

    #[test]
    fn the_load_says_what_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let command = |scenario| trial(scenario, "", "threads", folder.path()).unwrap().load_command();
        let one = command(Scenario::AcceptOne);
        assert!(
            one.starts_with("mailrace bench smtp --target 127.0.0.1:0 --connections 10 --duration 1000ms"),
            "{one}"
        );
        assert!(one.ends_with("--recipient user{}@bench.test --users 200 --per-connection 1"), "{one}");
        assert!(command(Scenario::ReadHttp).contains("bench http --urls "));
    }
}
