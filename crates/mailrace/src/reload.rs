//! Replaces the configuration of a running server.
//!
//! The configuration is held in a few places. Each holds all of its part as one value that is never
//! modified, only replaced:
//!
//! | part | holds | replaced by |
//! |---|---|---|
//! | workers | a shift: the intake context, the listeners, the TLS acceptor | each new connection uses the current one |
//! | scheduler | queues, rules, local deliverers; through it the classifier, the route resolver, the DSN sender and the SMTP deliverers | a message |
//! | control socket | tables, the explainer, the intake context | new connections use the new handler |
//! | drop folder scanner | the intake context | its next scan |
//! | load monitor | limits | a message |
//!
//! A reload has two steps. The first reads and checks the new configuration and *builds*
//! everything: it opens tables, reads certificates, binds addresses and starts threads, while
//! nothing uses them. Only this step can fail, and then everything is dropped and the server
//! continues unchanged. The second step replaces the values, and cannot fail.
//!
//! A session keeps the context that it began with; a delivery keeps its deliverer, hosts and
//! connection. What is unchanged is not rebuilt: tables and DNS lists keep their caches, sockets
//! their waiting clients, the router its DNS cache. Counters (sessions, rates, refusals, access
//! rules, failed logins) continue.
//!
//! Settings that folders, threads or the process depend on cannot be replaced: a configuration that
//! changes them is refused as a whole, with the keys ([`difference`]).

mod difference;

use std::fmt::Display;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use intake::{Logins, Room};
use lookup::Table;
use net::{Acceptor, Inherited};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedSender;

use crate::admin::{self, Clerk, Guide};
use crate::certificates::{self, Fresh, Watched};
use crate::config::{self, Config, Loaded, Source};
use crate::desk::{self, Policy};
use crate::exit::{self, Exit, Page};
use crate::flow::{self, Course, Emptier, Flow};
use crate::line::Level;
use crate::log::Log;
use crate::logins::{self, Before, Secret};
use crate::plan::Lists;
use crate::quota::{self, Rooms};
use crate::tables::{self, Tables};
use crate::workers::{self, Door, Doorman, Shift, Workers, runtime};
use crate::{check, plan, privileges, serve};

use difference::{Difference, differences, is_same_tls, ways_differ};

/// How often to check whether removed tables are still in use.
const BURIAL_EVERY: Duration = Duration::from_secs(1);

/// The channel for reload requests.
pub type Orders = UnboundedSender<Wish>;

/// A request to reload, with a channel for the answer.
pub struct Wish {
    answer: mpsc::Sender<Answer>,
}

/// The result of a reload, as the command prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The exit code; 0: the configuration is in force.
    pub code: u8,
    /// The output, in lines.
    pub text: String,
}

impl Wish {
    /// A request, and the receiver of its answer. No answer comes if the server ends first.
    pub fn new() -> (Self, Receiver<Answer>) {
        let (answer, answered) = mpsc::channel();
        (Wish { answer }, answered)
    }

    /// Answers the request.
    pub fn answer(self, answer: Answer) {
        // The caller may be gone.
        drop(self.answer.send(answer));
    }
}

/// The running server: the parts that a reload replaces.
pub struct Running {
    /// The configuration in force.
    pub loaded: Loaded,
    /// The limit on open files.
    pub files: u64,
    /// The tables in use.
    pub tables: Tables,
    /// The DNS lists in use.
    pub lists: Lists,
    /// All queues since the start, by number.
    pub queues: queue::Config,
    /// Counts mailboxes, if any has a quota.
    pub quota_counter: Option<quota::Counter>,
    /// The threads that run sessions.
    pub workers: Workers,
    /// The number of session threads, and of threads that deliver to other hosts.
    pub threads: usize,
    /// The message flow.
    pub flow: Flow,
    /// The control socket.
    pub clerks: admin::Server,
    /// What its handlers share.
    pub counter: admin::Counter,
    /// The drop folder scanner.
    pub emptier: Emptier,
    /// The load monitor.
    pub gauges: load::Running,
    /// The acceptor that the certificate task watches.
    pub watched: Watched,
    /// The log.
    pub log: Arc<Log>,
}

/// Everything that the second step needs.
struct Next {
    loaded: Loaded,
    tables: Tables,
    lists: Lists,
    queues: queue::Config,
    quota_counter: Option<quota::Counter>,
    policy: Policy,
    doors: Vec<Door>,
    acceptor: Option<Arc<Acceptor>>,
    change: flow::Change,
    guide: Guide,
    drop_runtime: Runtime,
}

impl Running {
    /// Reloads the configuration, or refuses it and continues unchanged. Both are logged.
    pub fn reload(&mut self) -> Answer {
        match self.try_to_reload() {
            Ok(lines) => {
                let changed = lines.join("; ");
                self.log.event(Level::Info, "reloaded the configuration", &[("outcome", &changed)]);
                Answer { code: 0, text: format!("{}: {changed}\n", self.loaded.source) }
            }
            Err(error) => {
                let Page { code, text } = Page::of(&error);
                let text_in_short = in_short(&text);
                let event = "the configuration is refused; the old one stays in force";
                self.log.event(Level::Error, event, &[("error", &text_in_short)]);
                Answer { code, text }
            }
        }
    }

    fn try_to_reload(&mut self) -> anyhow::Result<Vec<String>> {
        let file = match &self.loaded.source {
            Source::File(path) => Some(path.as_path()),
            Source::BuiltIn => None,
        };
        let loaded = config::load(file)?;
        let doubts = config::examine(&loaded, SystemTime::now())?;
        let differences = differences(&self.loaded.config, &loaded.config);
        refuse_what_needs_a_restart(&differences)?;
        let tables = self.tables.changed(&loaded.config, tables::tell(self.log.clone()))?;
        doubts.iter().for_each(|doubt| self.log.event(Level::Warning, doubt, &[]));
        if differences.is_empty() && self.tables.are(&tables) {
            let acceptor = self.workers.shift().acceptor.clone();
            let has_fresh = acceptor.is_some_and(|acceptor| certificates::look_at_once(&acceptor, &self.log));
            self.loaded = loaded;
            return Ok(vec![if has_fresh { "certificates" } else { "nothing has changed" }.into()]);
        }
        let mut told = vec![told(&differences, &self.tables, &tables)];
        told.extend(doubts);
        told.extend(check::cautions(&loaded.config));
        let next = self.prepare(loaded, tables)?;
        let sessions_max = next.policy.sessions_max;
        self.switch(next);
        serve::warn(&self.loaded.config, sessions_max, &self.log);
        Ok(told)
    }

    /// Builds everything for the next configuration beside the one in force.
    fn prepare(&self, loaded: Loaded, tables: Tables) -> anyhow::Result<Next> {
        let (old, new) = (&self.loaded.config, &loaded.config);
        let too_many = || Exit { code: exit::NO, text: "too many queues since the start: this needs a restart".into() };
        let queues = plan::queues_after(new, &self.queues).ok_or_else(too_many)?;
        let sessions_max =
            privileges::sessions(new.limits.sessions_max, plan::connections(new, self.threads), self.files)?;
        let directory = Arc::new(plan::directory(new, &tables));
        let lists = self.lists.changed(new, &tables::tell(self.log.clone()))?;
        let access = plan::access(new, &tables, &lists);
        let secret = logins::secret(new)?;
        let logins = self.logins(new, &tables, secret)?;
        let quota_counter = plan::counter(new, self.quota_counter.as_ref()).context("starting")?;
        let course = course(new, &tables, directory.clone(), &queues, quota_counter.as_ref())?;
        let rooms = Rooms::of(&course.transports, &directory, desk::troubles(self.log.clone())).map(Arc::new);
        let policy = Policy {
            directory: directory.clone(),
            postmaster: plan::postmaster(new)?,
            access,
            logins,
            room: rooms.clone().map(|rooms| rooms as Arc<dyn Room>),
            sessions_max,
        };
        let shift = self.workers.shift();
        let acceptor = match &shift.acceptor {
            Some(same) if is_same_tls(old, new) && plan::has_tls(new) => Some(same.clone()),
            _ => plan::acceptor(new)?.map(Arc::new),
        };
        let before = shift.doors.clone();
        let doorman = Doorman { before, inherited: Inherited::default(), workers: self.threads };
        let mut doors = doorman.open(new)?;
        workers::let_log_in(&mut doors, new, secret);
        let guide = Guide::new(new, &tables, directory, &queues, rooms)?;
        let drop_runtime = runtime().context("the drop")?;
        let differs = flow::Difference {
            ways: ways_differ(old, new) || !self.tables.are(&tables),
            cap: old.bounce.per_sender != new.bounce.per_sender,
        };
        let change = self.flow.prepare(queues.clone(), course, differs)?;
        Ok(Next { loaded, tables, lists, queues, quota_counter, policy, doors, acceptor, change, guide, drop_runtime })
    }

    /// The credential checker: the one in use, if nothing about it has changed.
    fn logins(&self, new: &Config, tables: &Tables, secret: Option<Secret>) -> anyhow::Result<Option<Logins>> {
        let desk = self.workers.shift().desk.clone();
        let (auth, logins) = (self.loaded.config.auth.as_ref(), desk.logins.as_ref());
        let before = auth.zip(logins);
        let before =
            before.map(|(auth, logins)| Before { auth, tables: &self.tables, credentials: &logins.credentials });
        logins::open(new, tables, secret, before)
    }

    /// Switches to the next configuration; nothing here can fail. Listeners come last, since their
    /// mail goes to the new queues.
    fn switch(&mut self, next: Next) {
        let Next { loaded, tables, lists, queues, quota_counter, policy, doors, acceptor, change, guide, drop_runtime } =
            next;
        let config = &loaded.config;
        self.flow.change(change);
        self.gauges.change(plan::load_limits(config), config.load.every);
        let desk = Arc::new(desk::next(&self.workers.shift().desk, config, policy));
        let counter = self.counter.clone();
        self.clerks.change(Clerk::new(config, counter, guide, desk.clone(), tables.clone(), lists.clone()));
        self.emptier.change(serve::drop_folder(config, &desk, &self.log, drop_runtime));
        if config.limits.backlog != self.loaded.config.limits.backlog {
            doors.iter().for_each(|door| self.widen(door, config.limits.backlog));
        }
        self.watched.change(Fresh { acceptor: acceptor.clone(), every: config.tls.reload_every });
        if let Some(acceptor) = &acceptor {
            // They have been checked; if one was damaged since, the old one stays, and this is
            // logged.
            certificates::look_at_once(acceptor, &self.log);
        }
        let before = self.workers.shift();
        doors.iter().filter(|door| !before.doors.iter().any(|old| old.is_where(door))).for_each(Door::announce);
        // Closing listeners are waited for; this reference must not keep them open.
        drop(before);
        self.workers.change(Shift { desk, acceptor, doors });
        bury(self.tables.iter().map(|(_, table)| table), |table| tables.iter().any(|(_, new)| Arc::ptr_eq(new, table)));
        bury(self.lists.iter(), |list| lists.iter().any(|new| Arc::ptr_eq(new, list)));
        (self.loaded, self.tables, self.lists, self.queues) = (loaded, tables, lists, queues);
        self.quota_counter = quota_counter;
    }

    fn widen(&self, door: &Door, backlog: u32) {
        if let Err(error) = door.set_backlog(backlog) {
            let fields: &[(&'static str, &dyn Display)] = &[("address", &door.address()), ("error", &error)];
            self.log.event(Level::Warning, "cannot change the backlog of a listener", fields);
        }
    }
}

/// The configuration of the message flow.
pub fn course(
    config: &Config,
    tables: &Tables,
    directory: Arc<lookup::directory::Directory>,
    queues: &queue::Config,
    counter: Option<&quota::Counter>,
) -> anyhow::Result<Course> {
    Ok(Course {
        directory,
        tables: tables.clone(),
        rules: Arc::new(plan::rules(config, tables, queues)),
        router: plan::routes(config),
        fleet: plan::fleet(config)?,
        transports: plan::maildirs(config, tables, counter),
        notices: plan::notices(config, serve::random()),
        hostname: config.hostname.clone(),
    })
}

fn refuse_what_needs_a_restart(differences: &[Difference]) -> Result<(), Exit> {
    let keys: Vec<_> = differences.iter().filter(|it| it.needs_restart).map(|it| it.key).collect();
    match keys[..] {
        [] => Ok(()),
        _ => Err(Exit { code: exit::NO, text: format!("needs a restart: {}", keys.join(", ")) }),
    }
}

/// What has changed, for people.
fn told(differences: &[Difference], old: &Tables, new: &Tables) -> String {
    let keys = differences.iter().map(|it| it.key.to_owned());
    let is_new = |table: &&Arc<dyn Table>| !old.find(table.name()).is_some_and(|before| Arc::ptr_eq(before, table));
    let opened = new.iter().map(|(_, table)| table).filter(is_new);
    let opened = opened.map(|table| format!("opened table {:?}", table.name()));
    keys.chain(opened).collect::<Vec<_>>().join(", ")
}

/// The first two lines of an error page in one line, for the log.
fn in_short(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.take(2).collect::<Vec<_>>().join(" ").trim_start_matches("mailrace: ").into()
}

/// Drops removed tables after their last user, on a thread that may wait for theirs: the last user
/// may be a session, whose thread may not wait.
fn bury<'a>(old: impl Iterator<Item = &'a Arc<dyn Table>>, stays: impl Fn(&Arc<dyn Table>) -> bool) {
    let mut gone: Vec<Arc<dyn Table>> = old.filter(|table| !stays(table)).cloned().collect();
    if gone.is_empty() {
        return;
    }
    let wait = move || {
        while !gone.is_empty() {
            thread::sleep(BURIAL_EVERY);
            gone.retain(|table| Arc::strong_count(table) > 1);
        }
    };
    // Without that thread, they end with their last user.
    drop(thread::Builder::new().name("burial".into()).spawn(wait));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_a_restart_is_refused_with_its_keys() {
        let difference = |key, needs_restart| Difference { key, needs_restart };
        assert!(refuse_what_needs_a_restart(&[difference("[limits]", false)]).is_ok());
        let all = [difference("data_dir", true), difference("[limits]", false), difference("[spool] lanes", true)];
        let refused = refuse_what_needs_a_restart(&all).unwrap_err();
        assert_eq!((refused.code, &*refused.text), (exit::NO, "needs a restart: data_dir, [spool] lanes"));
    }

    #[test]
    fn the_log_has_a_page_in_a_line() {
        let page = "error: `x` is not known\n  --> /etc/mailrace/mailrace.toml:3:1\n   |\n";
        assert_eq!(in_short(page), "error: `x` is not known --> /etc/mailrace/mailrace.toml:3:1");
        assert_eq!(in_short("mailrace: needs a restart: user"), "needs a restart: user");
    }
}
