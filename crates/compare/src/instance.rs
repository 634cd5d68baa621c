//! A system in one run: its folder, its start, the load on it, its end.
//!
//! Everything that was started here is ended when the value is dropped; [`Instance::stop`] also runs the
//! system's own command for that.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::arrivals::ArrivalCounter;
use crate::cpu::{CpuGroup, CpuSource};
use crate::error::CompareError;
use crate::file::{ArrivalPlace, CommandTemplate, CountedProcesses, ReadyTemplate, Scenario, System};
use crate::interrupt::Interrupt;
use crate::load_report;
use crate::measure::{LATE_WORK_TIME, LoadOutcome, measure_run};
use crate::ports::{address_here, free_port};
use crate::process::{self, CommandResult, Launch, Server};
use crate::process_table::{self, ProcessIdentity};
use crate::ready::Ready;
use crate::result::Run;
use crate::template::Words;

/// How long preparing and stopping may take, each.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(300);

/// A load on a system.
#[derive(Clone, Debug)]
pub(crate) struct Load<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) template: &'a CommandTemplate,
    pub(crate) count: Option<u64>,
    pub(crate) seconds: Option<u64>,
    pub(crate) value: Option<&'a str>,
}

/// A system with its folder.
#[derive(Debug)]
pub(crate) struct Instance<'a> {
    system: &'a System,
    folder: PathBuf,
    words: Words,
    /// The owner of the folder, if that is another one than the user of this process.
    owner: Option<&'a str>,
    interrupt: &'a Interrupt,
    /// None if the system runs already, or was not started yet.
    server: Option<Server>,
    /// Whose CPU counts, if not that of the server.
    counted: Option<CpuGroup>,
    /// The process of a pid file, if its CPU is lost when it ends.
    named: Option<NamedProcess>,
}

/// A process whose id was in a file.
#[derive(Debug)]
struct NamedProcess {
    file: PathBuf,
    identity: ProcessIdentity,
}

impl<'a> Instance<'a> {
    /// Makes the folder with the configuration, and runs the command that prepares it.
    ///
    /// # Errors
    ///
    /// A file cannot be written, no port is free, or the command fails.
    pub(crate) fn prepare(
        system: &'a System,
        folder: &Path,
        mailrace: &Path,
        interrupt: &'a Interrupt,
    ) -> Result<Instance<'a>, CompareError> {
        let port = system.port.map_or_else(|| free_port(system.address), Ok)?;
        let here = address_here(system.address);
        let ports = [port, free_port(here)?, free_port(here)?];
        let owner = system.user.as_deref().filter(|_| rustix::process::geteuid().is_root());
        let mut words = Words::of_run(folder, mailrace, system.address, ports);
        let (user, group) = process::user_and_group(owner)?;
        words.set("user", user);
        words.set("group", group);
        let folder = folder.to_owned();
        let instance = Instance { system, folder, words, owner, interrupt, server: None, counted: None, named: None };
        instance.write_files()?;
        if let Some(command) = &system.prepare {
            instance.run("prepare", command, interrupt)?;
        }
        Ok(instance)
    }

    /// Starts the system and waits until it is ready.
    ///
    /// # Errors
    ///
    /// It does not start, or is not ready in time.
    pub(crate) fn start(&mut self) -> Result<(), CompareError> {
        let ready = self.ready()?;
        let Some(command) = &self.system.start else { return self.find_counted() };
        let argv = self.words.command(command);
        let name = &self.system.name.get_ref().0;
        let user = self.owner.filter(|_| self.system.as_user);
        let launch = Launch { name, argv: &argv, folder: &self.folder, user };
        let server = self.server.insert(Server::start(&launch)?);
        if let Some(port) = server.await_ready(&ready, self.system.start_within.0, self.interrupt)? {
            self.words.set_port(self.system.address, port);
        }
        self.find_counted()
    }

    /// Runs a load on the system, which is ready.
    ///
    /// # Errors
    ///
    /// The load or the system fails, or mail is missing.
    pub(crate) fn measure(&mut self, load: &Load<'_>) -> Result<Run, CompareError> {
        let arrivals = self.system.arrives.as_ref().filter(|_| load.scenario.check_arrivals);
        let arrivals = arrivals.map(|arrives| (self.arrival_counter(&arrives.place), arrives.within.0));
        if let Some(warm) = &load.scenario.warm {
            self.warm(load, warm, arrivals.as_ref())?;
        }
        let before = arrivals.as_ref().map_or(Ok(0), |(counter, _)| counter.count(self.interrupt))?;
        let group = self.counted.as_ref().or(self.server.as_ref().map(Server::group));
        let run = measure_run(group, &self.folder, self.interrupt, || {
            let (mut outcome, parts) = self.run_load("load", load.template, load)?;
            if let Some((counter, within)) = &arrivals {
                // A server that accepts fast and delivers late handles no more messages in this time.
                outcome.seconds += counter.await_count(before, parts, *within, self.interrupt)?.as_secs_f64();
            }
            Ok(outcome)
        })?;
        self.server.as_mut().map_or(Ok(()), Server::check_running)?;
        self.named.as_ref().map_or(Ok(()), NamedProcess::check_running)?;
        Ok(run)
    }

    /// Ends the system, also after a signal. Its folder stays.
    ///
    /// # Errors
    ///
    /// The command that stops it fails, or a process survives SIGKILL.
    pub(crate) fn stop(mut self) -> Result<(), CompareError> {
        let told = match &self.system.stop {
            Some(command) => self.run("stop", command, &Interrupt::default()).map(drop),
            None => Ok(()),
        };
        let server = self.server.take();
        server.map_or(Ok(()), |server| server.stop(self.system.stop_within.0)).and(told)
    }

    fn write_files(&self) -> Result<(), CompareError> {
        make_folder(&self.folder)?;
        for file in &self.system.files {
            let path = self.folder.join(file.path.get_ref());
            path.parent().map_or(Ok(()), make_folder)?;
            let written = fs::write(&path, self.words.fill(&file.text));
            written.map_err(CompareError::system(format!("writing {}", path.display())))?;
        }
        match self.owner {
            Some(owner) => give(&self.folder, owner),
            None => Ok(()),
        }
    }

    fn run(&self, name: &str, command: &CommandTemplate, interrupt: &Interrupt) -> Result<CommandResult, CompareError> {
        let name = format!("{}-{name}", self.system.name.get_ref());
        let argv = self.words.command(command);
        let launch = Launch { name: &name, argv: &argv, folder: &self.folder, user: None };
        process::run_command(&launch, COMMAND_TIME_MAX, interrupt)
    }

    fn ready(&self) -> Result<Ready, CompareError> {
        let address = match &self.system.ready {
            Some(ReadyTemplate::Logs(text)) => return Ok(Ready::Logs(self.words_but_port().fill(text))),
            Some(ReadyTemplate::Succeeds(line)) => return Ok(Ready::Succeeds(self.words.fill(line))),
            Some(ReadyTemplate::Connects(address)) => self.words.fill(address),
            None => self.words.fill("{target}"),
        };
        let parsed = address.parse::<SocketAddr>().map(Ready::Connects);
        parsed.map_err(|_| {
            let name = self.system.name.get_ref();
            CompareError::Usage(format!("{name} is ready at {address:?}: expected ADDRESS:PORT"))
        })
    }

    /// `{port}` in a line of the log is found there.
    fn words_but_port(&self) -> Words {
        let mut words = self.words.clone();
        words.set("port", "{port}");
        words
    }

    fn find_counted(&mut self) -> Result<(), CompareError> {
        match &self.system.cpu {
            None => Ok(()),
            Some(CountedProcesses::PidFile(path)) => {
                self.count_process(NamedProcess::read(Path::new(&self.words.fill(path)))?);
                Ok(())
            }
            Some(CountedProcesses::Unit(unit)) => {
                let words = ["systemctl", "show", "--property=ControlGroup", "--value", unit];
                let show = CommandTemplate::Words(words.map(str::to_owned).to_vec());
                let found = self.run("unit", &show, self.interrupt)?;
                self.counted = Some(CpuGroup::of_unit(unit, &found.output)?);
                Ok(())
            }
        }
    }

    /// A system may start its process through another one, such as a supervisor. Then it is counted and ended only if
    /// it is named.
    fn count_process(&mut self, named: NamedProcess) {
        let id = named.identity.id;
        match &mut self.server {
            Some(server) if server.group().processes().contains(&named.identity) => {
                if server.group().source() != CpuSource::ProcessTree {
                    return;
                }
            }
            Some(server) if server.group().source() == CpuSource::ProcessTree => server.adopt(id),
            _ => {
                let mut group = CpuGroup::watching();
                group.watch(id);
                self.counted = Some(group);
            }
        }
        self.named = Some(named);
    }

    fn arrival_counter(&self, place: &ArrivalPlace) -> ArrivalCounter {
        match place {
            ArrivalPlace::Maildirs(folder) => ArrivalCounter::Maildirs(self.folder.join(self.words.fill(folder))),
            ArrivalPlace::Command(line) => {
                ArrivalCounter::Command { argv: process::shell(&self.words.fill(line)), folder: self.folder.clone() }
            }
        }
    }

    /// Warms the system up. None of its work, and no mail of it, may be left for the run.
    fn warm(
        &self,
        load: &Load<'_>,
        command: &CommandTemplate,
        arrivals: Option<&(ArrivalCounter, Duration)>,
    ) -> Result<(), CompareError> {
        match arrivals {
            Some((counter, within)) => {
                let before = counter.count(self.interrupt)?;
                let (_, parts) = self.run_load("warm", command, load)?;
                counter.await_count(before, parts, *within, self.interrupt)?;
            }
            None => _ = self.run_command_of_load("warm", command, load)?,
        }
        self.interrupt.rest(LATE_WORK_TIME)
    }

    fn run_load(
        &self,
        name: &str,
        command: &CommandTemplate,
        load: &Load<'_>,
    ) -> Result<(LoadOutcome, u64), CompareError> {
        let ended = self.run_command_of_load(name, command, load)?;
        let Scenario { output, counted, threads, .. } = load.scenario;
        load_report::outcome(name, &ended, *output, *counted, load.count, *threads)
    }

    fn run_command_of_load(
        &self,
        name: &str,
        command: &CommandTemplate,
        load: &Load<'_>,
    ) -> Result<CommandResult, CompareError> {
        let argv = load.words(&self.words).command(command);
        let launch = Launch { name, argv: &argv, folder: &self.folder, user: None };
        process::run_command(&launch, load.scenario.within.0, self.interrupt)
    }
}

impl Load<'_> {
    /// The words of the system with those of the scenario.
    pub(crate) fn words(&self, words: &Words) -> Words {
        let mut words = words.clone();
        self.count.into_iter().for_each(|count| words.set("count", count));
        self.seconds.into_iter().for_each(|seconds| words.set("seconds", seconds));
        self.value.into_iter().for_each(|value| words.set("value", value));
        words
    }
}

fn make_folder(folder: &Path) -> Result<(), CompareError> {
    fs::create_dir_all(folder).map_err(CompareError::system(format!("making {}", folder.display())))
}

/// Gives a folder, with all in it, to a user.
fn give(path: &Path, user: &str) -> Result<(), CompareError> {
    let owner = process::find_user(user)?;
    let mut paths = vec![path.to_owned()];
    while let Some(path) = paths.pop() {
        let given = chown(&path, Some(owner.uid.as_raw()), Some(owner.gid.as_raw()));
        given.map_err(CompareError::system(format!("giving {} to {user}", path.display())))?;
        let entries = fs::read_dir(&path).into_iter().flatten().flatten();
        paths.extend(entries.map(|entry| entry.path()));
    }
    Ok(())
}

impl NamedProcess {
    fn read(file: &Path) -> Result<NamedProcess, CompareError> {
        let shown = file.display();
        let text = fs::read_to_string(file).map_err(CompareError::system(format!("reading {shown}")))?;
        let id: i32 =
            text.trim().parse().map_err(|_| CompareError::Failed(format!("{shown} has no process id: {text:?}")))?;
        let identity = process_table::identify(id).ok_or_else(|| {
            let text = format!("{shown} names process {id}, which does not run: name the file of the running system");
            CompareError::Failed(text)
        })?;
        Ok(NamedProcess { file: file.to_owned(), identity })
    }

    fn check_running(&self) -> Result<(), CompareError> {
        let id = self.identity.id;
        match process_table::identify(id) == Some(self.identity) {
            true => Ok(()),
            false => Err(CompareError::Failed(format!(
                "process {id} of {} ended during the run, so its CPU is not known",
                self.file.display()
            ))),
        }
    }
}
