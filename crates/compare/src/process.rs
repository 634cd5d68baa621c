//! Programs that a measurement starts: servers, which are awaited and stopped, and commands, which run
//! to their end.
//!
//! Each leads a process group of its own, reads nothing, and writes its output to files. A program is
//! ended, with all of its processes, when its value is dropped. Nothing here outlives a run that was
//! interrupted.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use load::ProcessCpuTime;
use nix::unistd::{Group, User, geteuid};

use crate::cpu::CpuGroup;
use crate::error::CompareError;
use crate::interrupt::Interrupt;
use crate::ready::Ready;

/// How much of the end of a program's output is in an error.
const TAIL_OCTETS: usize = 4000;
/// How long a command that is too late may take to end after SIGTERM.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// A program to start.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// For messages, and for the names of its files.
    pub name: &'a str,
    /// The program and its arguments; at least one word.
    pub argv: &'a [String],
    /// Its working folder, where its output goes too.
    pub folder: &'a Path,
    /// The user that it runs as; None is the user of this process. Only root can name another one.
    pub user: Option<&'a str>,
}

/// A server that was started.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    group: CpuGroup,
    log: PathBuf,
    is_daemon: bool,
}

/// A command that has ended with exit code 0.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandResult {
    /// Its standard output; bytes that are not UTF-8 are replaced.
    pub output: String,
    /// From its start to its end.
    pub seconds: f64,
    /// Its CPU, with that of its children that it waited for.
    pub cpu_seconds: f64,
}

impl Server {
    /// Starts a server; its output goes to `NAME.log` in its folder.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or the program cannot be started.
    pub fn start(launch: &Launch<'_>) -> Result<Server, CompareError> {
        let mut group = CpuGroup::create(launch.name);
        let log = launch.folder.join(format!("{}.log", launch.name));
        let output = append(&log)?;
        let errors = output.try_clone().map_err(CompareError::system("sharing a log"))?;
        let argv = group.command(&as_user(launch)?);
        let child = command(&argv, launch.folder).stdout(output).stderr(errors).spawn();
        let child = child.map_err(CompareError::system(format!("starting {}: {}", launch.name, argv[0])))?;
        group.watch(child.id().cast_signed());
        Ok(Server { name: launch.name.to_owned(), child, group, log, is_daemon: false })
    }

    /// Waits until the server is ready; returns the port if its output names it. A server that exits
    /// with 0 before it is ready is taken for a daemon.
    ///
    /// # Errors
    ///
    /// It fails, or is not ready in time; the error has the end of its output.
    pub fn await_ready(
        &mut self,
        ready: &Ready,
        time_max: Duration,
        interrupt: &Interrupt,
    ) -> Result<Option<u16>, CompareError> {
        let found = interrupt.wait_for(time_max, || {
            // Its end is looked for first: it may print that it is ready, and end.
            let ended = self.ended()?;
            match (ready.poll(&read_log(&self.log)), ended) {
                (None, Some(status)) if !status.success() => Err(self.failure(&format!("ended with {status}"))),
                (found, _) => Ok(found),
            }
        })?;
        found.ok_or_else(|| self.failure(&format!("is not ready after {} s: {}", time_max.as_secs(), ready.fault())))
    }

    /// Its processes.
    #[must_use]
    pub fn group(&self) -> &CpuGroup {
        &self.group
    }

    /// Also counts and ends the process with this id and its descendants, which this process did not start.
    pub fn adopt(&mut self, id: i32) {
        self.group.watch(id);
    }

    /// # Errors
    ///
    /// It has ended, unless it is a daemon whose processes run.
    pub fn check_running(&mut self) -> Result<(), CompareError> {
        match self.ended()? {
            Some(status) if !self.is_daemon || self.group.processes().is_empty() => {
                Err(self.failure(&format!("ended with {status} during the run")))
            }
            _ => Ok(()),
        }
    }

    /// Ends all of its processes: SIGTERM, and SIGKILL after `time_max`.
    ///
    /// # Errors
    ///
    /// A process survives SIGKILL.
    pub fn stop(mut self, time_max: Duration) -> Result<(), CompareError> {
        self.group.end(time_max)?;
        self.child.wait().map(drop).map_err(CompareError::system(format!("waiting for {}", self.name)))
    }

    /// An error about this server with the end of its output.
    #[must_use]
    pub fn failure(&self, what: &str) -> CompareError {
        CompareError::Failed(format!("{} {what}{}", self.name, tail(&read_log(&self.log))))
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, CompareError> {
        let ended = self.child.try_wait().map_err(CompareError::system(format!("waiting for {}", self.name)))?;
        self.is_daemon |= ended.is_some_and(|status| status.success());
        Ok(ended)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The group ends its processes when it is dropped, which is after this; the child must be dead
        // before it can be waited for.
        let _ = self.group.end(END_TIME_MAX);
        let _ = self.child.wait();
    }
}

/// Runs a command to its end. Its output goes to `NAME.out` and `NAME.err` in its folder, so no pipe
/// can fill up and no child can keep one open.
///
/// # Errors
///
/// It cannot be started, ends with another exit code than 0, takes longer than `time_max`, or the run
/// is interrupted. The error has the end of what it printed.
pub fn run_command(
    launch: &Launch<'_>,
    time_max: Duration,
    interrupt: &Interrupt,
) -> Result<CommandResult, CompareError> {
    let path = |kind: &str| launch.folder.join(format!("{}.{kind}", launch.name));
    let (output, errors) = (create(&path("out"))?, create(&path("err"))?);
    let argv = as_user(launch)?;
    let cpu_before = children_cpu_seconds()?;
    let begun = Instant::now();
    let child = command(&argv, launch.folder).stdout(output).stderr(errors).spawn();
    let child = child.map_err(CompareError::system(format!("starting {}: {}", launch.name, argv[0])))?;
    let mut running = RunningCommand::new(child);
    let ended = interrupt.wait_for(time_max, || {
        running.child.try_wait().map_err(CompareError::system(format!("waiting for {}", launch.name)))
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let output = read_log(&path("out"));
    let fault = match ended {
        Some(status) if status.success() => {
            return Ok(CommandResult { output, seconds, cpu_seconds: children_cpu_seconds()? - cpu_before });
        }
        Some(status) => format!("ended with {status}"),
        None => format!("did not end within {} s", time_max.as_secs()),
    };
    let said = tail(&(read_log(&path("err")) + &output));
    Err(CompareError::Failed(format!("{}: `{}` {fault}{said}", launch.name, launch.argv.join(" "))))
}

/// A command whose process group is ended when it is dropped.
struct RunningCommand {
    child: Child,
    group: CpuGroup,
}

impl RunningCommand {
    fn new(child: Child) -> RunningCommand {
        let mut group = CpuGroup::of_command();
        group.watch(child.id().cast_signed());
        RunningCommand { child, group }
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // A command that ended has no processes left; otherwise another error is reported.
        let _ = self.group.end(END_TIME_MAX);
        let _ = self.child.wait();
    }
}

/// A command as a shell line.
#[must_use]
pub fn shell(line: &str) -> Vec<String> {
    ["/bin/sh", "-c", line].map(str::to_owned).to_vec()
}

/// The words that become the program, as its user.
fn as_user(launch: &Launch<'_>) -> Result<Vec<String>, CompareError> {
    let Some(name) = launch.user else { return Ok(launch.argv.to_vec()) };
    let user = find_user(name)?;
    let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
    let words = ["setpriv", "--reuid", &uid, "--regid", &gid, "--init-groups", "--"].map(str::to_owned);
    Ok(words.into_iter().chain(launch.argv.iter().cloned()).collect())
}

/// A user of this machine.
///
/// # Errors
///
/// There is no such user.
pub(crate) fn find_user(name: &str) -> Result<User, CompareError> {
    let found = User::from_name(name).map_err(CompareError::system(format!("looking up the user {name}")))?;
    found.ok_or_else(|| CompareError::Failed(format!("the user {name} does not exist: create it, or name another one")))
}

/// The names of a user and of that one's group; without a name, of the user of this process.
///
/// # Errors
///
/// There is no such user, or one of them has no name.
pub(crate) fn user_and_group(name: Option<&str>) -> Result<(String, String), CompareError> {
    let nameless = |what: &str| CompareError::Failed(format!("the {what} of this process has no name"));
    let user = match name {
        Some(name) => find_user(name)?,
        None => User::from_uid(geteuid())
            .map_err(CompareError::system("looking up the user of this process"))?
            .ok_or_else(|| nameless("user"))?,
    };
    let group = Group::from_gid(user.gid).map_err(CompareError::system("looking up a group"))?;
    Ok((user.name, group.ok_or_else(|| nameless("group"))?.name))
}

fn command(argv: &[String], folder: &Path) -> Command {
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).current_dir(folder).stdin(Stdio::null()).process_group(0);
    command.env("PATH", search_path());
    command
}

/// The file of a program: the PATH of the user, and where servers are, which it often lacks.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let folders = search_path();
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(name));
    paths.find(|path| path.is_file())
}

fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    path
}

fn append(path: &Path) -> Result<File, CompareError> {
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.map_err(CompareError::system(format!("opening {}", path.display())))
}

fn create(path: &Path) -> Result<File, CompareError> {
    File::create(path).map_err(CompareError::system(format!("creating {}", path.display())))
}

/// The text of a file; empty if it cannot be read.
fn read_log(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// The end of an output, on lines of its own.
fn tail(output: &str) -> String {
    let output = output.trim();
    let begin = output.ceil_char_boundary(output.len().saturating_sub(TAIL_OCTETS));
    if output.is_empty() { String::new() } else { format!(":\n{}", &output[begin..]) }
}

fn children_cpu_seconds() -> Result<f64, CompareError> {
    let used = ProcessCpuTime::sample_ended_children().map_err(CompareError::system("reading the CPU of a command"))?;
    Ok(used.total_secs())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn launch<'a>(folder: &'a Path, argv: &'a [String]) -> Launch<'a> {
        Launch { name: "program", argv, folder, user: None }
    }

    fn run(folder: &Path, line: &str, time_max: Duration) -> Result<CommandResult, CompareError> {
        run_command(&launch(folder, &shell(line)), time_max, &Interrupt::default())
    }

    #[test]
    fn a_command_gives_its_output_or_says_why_it_failed() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(run(folder.path(), "echo done", LONG).unwrap().output, "done\n");
        let text = run(folder.path(), "echo no such thing >&2; exit 3", LONG).unwrap_err().to_string();
        assert!(text.contains("exit status: 3") && text.contains("no such thing"), "{text}");
        let text = run(folder.path(), "sleep 60", Duration::from_millis(50)).unwrap_err().to_string();
        assert!(text.contains("did not end within"), "{text}");
    }

    #[test]
    fn an_interrupted_command_is_ended_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let flag = Arc::new(AtomicBool::new(false));
        let interrupt = Interrupt::from_flag(flag.clone());
        let argv = shell("echo $$ >id; while :; do sleep 1; done");
        std::thread::scope(|scope| {
            let running = scope.spawn(|| run_command(&launch(folder.path(), &argv), LONG, &interrupt));
            let begun = Instant::now();
            let id = loop {
                let text = read_log(&folder.path().join("id"));
                if text.ends_with('\n') {
                    break text.trim().parse::<i32>().unwrap();
                }
                assert!(begun.elapsed() < LONG);
                std::thread::yield_now();
            };
            flag.store(true, Relaxed);
            assert!(matches!(running.join().unwrap(), Err(CompareError::Interrupted)));
            assert_eq!(crate::process_table::identify(id), None);
        });
    }

    #[test]
    fn a_server_is_awaited_and_stopped_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let argv = shell("echo listening on 127.0.0.1:2525; sleep 60 & wait");
        let mut server = Server::start(&launch(folder.path(), &argv)).unwrap();
        let ready = Ready::Logs("listening on 127.0.0.1:{port}".to_owned());
        assert_eq!(server.await_ready(&ready, LONG, &Interrupt::default()).unwrap(), Some(2525));
        server.check_running().unwrap();
        let processes = server.group().processes();
        assert!(!processes.is_empty());
        server.stop(LONG).unwrap();
        assert!(processes.iter().all(|process| crate::process_table::identify(process.id) != Some(*process)));
    }

    #[test]
    fn a_server_that_ends_is_reported_with_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let argv = shell("echo port in use >&2; exit 1");
        let mut server = Server::start(&launch(folder.path(), &argv)).unwrap();
        let never = Ready::Logs("ready".to_owned());
        let text = server.await_ready(&never, LONG, &Interrupt::default()).unwrap_err().to_string();
        assert!(text.contains("exit status: 1") && text.contains("port in use"), "{text}");
        assert!(server.check_running().is_err());
    }
}
