//! Another configuration for a server that runs.
//!
//! What a server goes by stands in few places, each of which holds all of it as one value that is never changed, only
//! exchanged:
//!
//! | who | holds | how it is exchanged |
//! |---|---|---|
//! | the workers | a shift: the desk, the doors, who makes TLS | each accepted connection looks which one is on |
//! | the scheduler | queues, rules, couriers, and through it the sorter, the navigator, the notary and the carriers | a note |
//! | clerks of the control socket | tables, the guide, the desk | the next connection gets the next clerk |
//! | the emptier of the drop | the desk | at its next round |
//! | the monitor | limits | a message |
//!
//! A reload has two halves. In the first one the next configuration is read, checked and *built*: tables are opened,
//! certificates read, addresses bound, threads started, while nothing goes by it. All that can fail is in this half,
//! and when anything does all of it is dropped: the server is as it was. The second half exchanges, and cannot fail.
//!
//! A session ends by the desk that it began with, a delivery by the courier, the hosts and the connection that it began
//! with. Both hold what they need by its count, so it lives as long as they do. What differs in nothing is not built
//! anew: tables and lists in the DNS keep what they have in memory, sockets those who wait to be accepted, and the
//! router what it knows of the DNS. What counts (sessions, rates, refusals, access rules, failed logins) goes on from one
//! desk to the next.
//!
//! What folders, threads and the process were made of cannot be exchanged: a configuration in which that differs is
//! refused whole, with the keys ([`difference`]).

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
use crate::{plan, privileges, serve};

use difference::{Difference, differences, is_same_tls, ways_differ};

/// Tables that are gone are looked at so often, whether anybody still uses them.
const BURIAL_EVERY: Duration = Duration::from_secs(1);

/// Where orders go to read the configuration again.
pub type Orders = UnboundedSender<Wish>;

/// Somebody wants the configuration read again, and waits for what comes of it.
pub struct Wish {
    answer: mpsc::Sender<Answer>,
}

/// What came of it, as the command has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The exit code; 0: it is in force.
    pub code: u8,
    /// What there is to say, in lines.
    pub text: String,
}

impl Wish {
    /// One, and where its answer comes. None comes where the server ends before.
    pub fn new() -> (Self, Receiver<Answer>) {
        let (answer, answered) = mpsc::channel();
        (Wish { answer }, answered)
    }

    /// Answers it.
    pub fn answer(self, answer: Answer) {
        // Whoever asked may have gone.
        drop(self.answer.send(answer));
    }
}

/// The server that runs: what is exchanged, and what that is done with.
pub struct Running {
    /// The configuration in force.
    pub loaded: Loaded,
    /// How many files the process may have.
    pub files: u64,
    /// The tables in force.
    pub tables: Tables,
    /// The lists in the DNS in force.
    pub lists: Lists,
    /// All queues that there have been, by number.
    pub queues: queue::Config,
    /// Who counts what mailboxes hold, where any has a quota.
    pub quota_counter: Option<quota::Counter>,
    /// Those that drive sessions.
    pub workers: Workers,
    /// How many of them, and of those that bring mail to other hosts.
    pub threads: usize,
    /// What brings mail further.
    pub flow: Flow,
    /// Those that answer the operator.
    pub clerks: admin::Server,
    /// What they have in common.
    pub counter: admin::Counter,
    /// What takes the mail of local programs.
    pub emptier: Emptier,
    /// What looks at the load.
    pub gauges: load::Running,
    /// Who makes sessions secure, for the task that looks whether certificates have changed.
    pub watched: Watched,
    /// What is told goes here.
    pub log: Arc<Log>,
}

/// All that can fail on the way to another configuration, done.
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
    /// Reads the configuration again, and goes by it from then on; or refuses it whole, and goes on as before. Both are
    /// logged.
    pub fn reload(&mut self) -> Answer {
        match self.try_to_reload() {
            Ok(lines) => {
                let changed = lines.join("; ");
                self.log.event(Level::Info, "the configuration was read again", &[("outcome", &changed)]);
                Answer { code: 0, text: format!("{}: {changed}\n", self.loaded.source) }
            }
            Err(error) => {
                let Page { code, text } = Page::of(&error);
                let text_in_short = in_short(&text);
                let event = "the configuration was refused: the server goes on as it was";
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
            let has_fresh = self.workers.shift().acceptor.as_ref().is_some_and(|it| certificates::look(it, &self.log));
            self.loaded = loaded;
            return Ok(vec![if has_fresh { "certificates" } else { "nothing has changed" }.into()]);
        }
        let mut told = vec![told(&differences, &self.tables, &tables)];
        told.extend(doubts);
        let next = self.prepare(loaded, tables)?;
        self.switch(next);
        Ok(told)
    }

    /// Builds the next world beside the one in force.
    fn prepare(&self, loaded: Loaded, tables: Tables) -> anyhow::Result<Next> {
        let (old, new) = (&self.loaded.config, &loaded.config);
        let too_many = || Exit { code: exit::NO, text: "there were too many queues: that needs a restart".into() };
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

    /// Who checks passwords: whoever does so now, if nothing of that has changed.
    fn logins(&self, new: &Config, tables: &Tables, secret: Option<Secret>) -> anyhow::Result<Option<Logins>> {
        let desk = self.workers.shift().desk.clone();
        let (auth, logins) = (self.loaded.config.auth.as_ref(), desk.logins.as_ref());
        let before = auth.zip(logins);
        let before =
            before.map(|(auth, logins)| Before { auth, tables: &self.tables, credentials: &logins.credentials });
        logins::open(new, tables, secret, before)
    }

    /// Takes the next world; nothing here can fail. Who takes mail comes last: what he takes is for the new queues.
    fn switch(&mut self, next: Next) {
        let Next { loaded, tables, lists, queues, quota_counter, policy, doors, acceptor, change, guide, drop_runtime } =
            next;
        let config = &loaded.config;
        self.flow.change(change);
        self.gauges.change(plan::load_limits(config), config.load.every);
        let desk = Arc::new(desk::next(&self.workers.shift().desk, config, policy));
        self.clerks.change(Clerk::new(config, self.counter.clone(), guide, desk.clone(), tables.clone()));
        self.emptier.change(serve::drop_folder(config, &desk, &self.log, drop_runtime));
        if config.limits.backlog != self.loaded.config.limits.backlog {
            doors.iter().for_each(|door| self.widen(door, config.limits.backlog));
        }
        self.watched.change(Fresh { acceptor: acceptor.clone(), every: config.tls.reload_every });
        if let Some(acceptor) = &acceptor {
            // They have been examined; where one was spoilt since, the old ones stay, and the log tells.
            certificates::look(acceptor, &self.log);
        }
        let before = self.workers.shift();
        doors.iter().filter(|door| !before.doors.iter().any(|old| old.is_where(door))).for_each(Door::announce);
        self.workers.change(Shift { desk, acceptor, doors });
        bury(self.tables.iter().map(|(_, table)| table), |table| tables.iter().any(|(_, new)| Arc::ptr_eq(new, table)));
        bury(self.lists.iter(), |list| lists.iter().any(|new| Arc::ptr_eq(new, list)));
        (self.loaded, self.tables, self.lists, self.queues) = (loaded, tables, lists, queues);
        self.quota_counter = quota_counter;
    }

    fn widen(&self, door: &Door, backlog: u32) {
        if let Err(error) = door.set_backlog(backlog) {
            let fields: &[(&'static str, &dyn Display)] = &[("address", &door.address()), ("error", &error)];
            self.log.event(Level::Warning, "limits.backlog stays as it was at a listener", fields);
        }
    }
}

/// What the flow goes by.
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
    let opened = opened.map(|table| format!("opened the table {:?}", table.name()));
    keys.chain(opened).collect::<Vec<_>>().join(", ")
}

/// A page in one line, for the log: what is the matter, and where.
fn in_short(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.take(2).collect::<Vec<_>>().join(" ").trim_start_matches("mailrace: ").into()
}

/// Tables that are gone end after their last user, on a thread that may wait for theirs: the last user may be a
/// session, whose thread may not.
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
    // Without that thread they end with their last user.
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
