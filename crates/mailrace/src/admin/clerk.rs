//! Handles requests. What concerns the queues is one short pass on the scheduler's thread;
//! messages, the directory and the DNS are read on the handler's own thread, which may wait.
//! Actions run the same way, are logged, and change nothing but what they name.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

use intake::access::{Access, Visit};
use intake::{Desk, Refusal};
use lookup::directory::Resolution;
use mail::{Address, QueueId, Timestamp};
use queue::{Act, Destination};
use serde_json::{Value, json};
use spool::Stored;

use super::explain::{Account, Guide, Journey, access};
use super::filter::{Filter, NoSuchQueue, Sieve, queue_named};
use super::found::{self, Found, Letter, Letters, Place, Whom};
use super::question::{By, NotAQuestion, Order, Question};
use super::summary::{self, Tally};
use super::tables::{self, Told};
use super::wait::unless_stopping;
use super::{list, load, message};
use crate::flow::{Mailbag, Queues};
use crate::line::Level;
use crate::log::Log;
use crate::metrics::{self, Attempts, Census, Reading};
use crate::plan::Lists;
use crate::reload::{Answer, Orders, Wish};
use crate::tables::Tables;

/// Handles requests.
pub struct Clerk {
    pub(super) mailbag: Mailbag,
    pub(super) desk: Arc<Desk>,
    pub(super) log: Arc<Log>,
    pub(super) guide: Guide,
    pub(super) tables: Tables,
    pub(super) lists: Lists,
    pub(super) attempts: Arc<Attempts>,
    pub(super) orders: Orders,
    /// A 250 does not wait for the disk.
    pub(super) relaxed: bool,
    pub(super) stopping: Arc<AtomicBool>,
}

/// Why there is no answer, or only part of one.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    #[error("the server is stopping")]
    Stopping,
    #[error("invalid request: {0}")]
    Unknown(#[from] NotAQuestion),
    /// The request is valid, and refused.
    #[error("{0}")]
    No(String),
    #[error(transparent)]
    Broken(#[from] io::Error),
}

impl From<NoSuchQueue> for Unanswered {
    fn from(error: NoSuchQueue) -> Self {
        Unanswered::No(error.to_string())
    }
}

type Answered<T> = Result<T, Unanswered>;

impl Clerk {
    /// The flag that stops the handlers.
    pub(super) fn stopping(&self) -> Arc<AtomicBool> {
        self.stopping.clone()
    }

    /// Handles one request.
    pub(super) fn answer(&self, line: &str, out: &mut impl Write) -> Answered<()> {
        let question: Question = line.parse()?;
        if question.is_order() {
            self.log.event(Level::Info, "operator action", &[("order", &question)]);
        }
        match question {
            Question::Count(filter) => writeln!(out, "{}", self.count(filter)?)?,
            Question::List(filter) => self.list(filter, out)?,
            Question::Summary { by, filter } => write_rows(&self.summary(by, filter)?, out)?,
            Question::Hold(order) => self.act(Act::Hold, order, out)?,
            Question::Release(order) => self.act(Act::Release, order, out)?,
            Question::Retry(order) => self.act(Act::Retry, order, out)?,
            Question::Remove(order) => self.act(Act::Remove, order, out)?,
            Question::Bounce(order) => self.act(Act::Bounce, order, out)?,
            Question::Pause { queue } => self.pause(queue, true)?,
            Question::Resume { queue } => self.pause(queue, false)?,
            Question::ExplainAddress { address, sender, client, helo } => {
                let sender = sender.map(|sender| sender.0);
                if let Some(client) = client {
                    self.explain_access(client, helo.as_deref(), sender.as_ref(), &address.0, out)?;
                }
                self.explain_address(&address.0, sender, out)?;
            }
            Question::ExplainMessage { id } => self.explain_message(id.0, out)?,
            Question::Verify { address } => self.verify(&address.0, out)?,
            Question::Show { id } => self.show(id.0, out)?,
            Question::Content { id, from } => self.content(id.0, from, out)?,
            Question::TableGet { table, key } => self.table_get(&table, &key)?.write(out)?,
            Question::TableStats { table } => write_rows(&self.table_stats(table.as_deref())?, out)?,
            Question::TableAccept { table } => self.table_accept(&table)?,
            Question::Reload => self.reload(out)?,
            Question::Load => out.write_all(self.load().as_bytes())?,
            Question::Status => out.write_all(metrics::text(&self.reading()?).as_bytes())?,
        }
        Ok(())
    }

    fn ask<T: Send + 'static>(&self, question: impl FnOnce(&mut Queues) -> T + Send + 'static) -> Answered<T> {
        self.mailbag.ask(question).ok_or(Unanswered::Stopping)
    }

    fn count(&self, filter: Filter) -> Answered<usize> {
        if filter.needs_letters() {
            let mut number = 0;
            self.each(filter, |_, _, _| {
                number += 1;
                Ok(())
            })?;
            return Ok(number);
        }
        Ok(self.ask(move |queues| found::count(queues, &filter, now()))??)
    }

    fn list(&self, filter: Filter, out: &mut impl Write) -> Answered<()> {
        self.each(filter, |entry, place, (envelope, size)| match list::object(entry, place, envelope, *size) {
            Some(line) => writeln!(out, "{line}"),
            None => Ok(()),
        })
    }

    /// Shows each selected recipient with its message, oldest first. Recipients that were delivered
    /// since, or whose message cannot be read, are left out.
    fn each(
        &self,
        filter: Filter,
        mut show: impl FnMut(&queue::Entry, &Place, &Letter) -> io::Result<()>,
    ) -> Answered<()> {
        let (filter, Found { entries, places }) = self.find(filter)?;
        let mut letters = Letters::new(&self.desk.spool);
        for entry in entries {
            self.go_on()?;
            let Some(letter) = letters.letter(entry.id) else { continue };
            if filter.passes_letter(&letter.0, letter.1, entry.ordinal) {
                show(&entry, &places[&entry.destination], letter)?;
            }
        }
        Ok(())
    }

    fn find(&self, filter: Filter) -> Answered<(Filter, Found)> {
        let (filter, found) = self.ask(move |queues| {
            let found = found::find(queues, &filter, now());
            (filter, found)
        })?;
        let mut found = found?;
        found.sort();
        Ok((filter, found))
    }

    /// Reading a million messages takes long; shutdown does not wait for it.
    fn go_on(&self) -> Answered<()> {
        if self.stopping.load(Relaxed) { Err(Unanswered::Stopping) } else { Ok(()) }
    }

    fn summary(&self, by: By, filter: Filter) -> Answered<Vec<Value>> {
        match by {
            By::NextHop if filter.is_empty() => self.ask(|queues| summary::by_next_hop(queues, now())),
            By::NextHop => Err(Unanswered::No("a filter selects recipients and does not apply to next hops".into())),
            By::Destination => Ok(summary::by_destination(self.places(filter)?, now())),
            By::Queue => {
                let places = self.places(filter)?;
                Ok(summary::by_queue(self.ask(|queues| summary::lanes(queues))?, places, now()))
            }
            By::Sender => self.senders(filter),
        }
    }

    /// Counts by destination; on the scheduler's thread and without copies if no message has to be
    /// read.
    fn places(&self, filter: Filter) -> Answered<HashMap<Place, Tally>> {
        if !filter.needs_letters() {
            return Ok(self.ask(move |queues| tally_places(queues, &filter))??);
        }
        let mut tallies: HashMap<Place, Tally> = HashMap::new();
        self.each(filter, |entry, place, _| {
            tallies.entry(place.clone()).or_default().count(entry, now());
            Ok(())
        })?;
        Ok(tallies)
    }

    fn senders(&self, filter: Filter) -> Answered<Vec<Value>> {
        let (mut tallies, now): (HashMap<String, Tally>, _) = (HashMap::new(), now());
        self.each(filter, |entry, _, (envelope, _)| {
            let sender = envelope.sender.as_ref().map_or("", |sender| sender.as_str());
            match tallies.get_mut(sender) {
                Some(tally) => tally.count(entry, now),
                None => tallies.entry(sender.to_owned()).or_default().count(entry, now),
            }
            Ok(())
        })?;
        Ok(summary::by_sender(tallies, now))
    }

    fn act(&self, act: Act, order: Order, out: &mut impl Write) -> Answered<()> {
        let letters = if order.filter.needs_letters() { Some(self.choose(act, &order.filter)?) } else { None };
        let chosen = self.ask(move |queues| found::pick(queues, act, &order, letters.as_ref(), now()))??;
        Ok(writeln!(out, "{chosen}")?)
    }

    /// The recipients that an action selects by their messages.
    fn choose(&self, act: Act, filter: &Filter) -> Answered<HashSet<Whom>> {
        let asked = filter.clone();
        let mut candidates = self.ask(move |queues| found::candidates(queues, act, &asked, now()))??;
        candidates.sort_unstable();
        let mut letters = Letters::new(&self.desk.spool);
        let mut chosen = HashSet::new();
        for (id, ordinal) in candidates {
            self.go_on()?;
            if letters.letter(id).is_some_and(|(envelope, size)| filter.passes_letter(envelope, *size, ordinal)) {
                chosen.insert((id, ordinal));
            }
        }
        Ok(chosen)
    }

    fn pause(&self, queue: String, paused: bool) -> Answered<()> {
        Ok(self.ask(move |queues| queue_named(queues, &queue).map(|number| queues.pause(number, paused)))??)
    }

    fn explain_access(
        &self,
        client: IpAddr,
        helo: Option<&str>,
        sender: Option<&Address>,
        recipient: &Address,
        out: &mut impl Write,
    ) -> Answered<()> {
        let told = async {
            let recipient = self.desk.meant(recipient, None).await;
            let client = client.to_canonical();
            let visit = Visit {
                client: Some(client),
                helo,
                sender: Some(sender),
                recipient: Some(&recipient),
                ..Visit::default()
            };
            let tags = self.desk.tags(&visit).await;
            let mut told = access::told(self.desk.access.as_ref(), &tags.told(&visit)).await;
            if matches!(self.desk.resolve(&recipient).await, Resolution::Remote(_)) {
                told += &access::relaying(client, (self.desk.relays)(client), self.desk.relaying_is_deferred);
            }
            told
        };
        let told = unless_stopping(&self.stopping, told)?;
        Ok(out.write_all(told.ok_or(Unanswered::Stopping)?.as_bytes())?)
    }

    fn explain_address(&self, address: &Address, sender: Option<Address>, out: &mut impl Write) -> Answered<()> {
        let (meant, journey) = self.journey(address, sender.as_ref())?;
        let legs = journey.legs.clone();
        let situations =
            self.ask(move |queues| legs.iter().map(|leg| leg.situation(queues, now())).collect::<Vec<_>>())?;
        Ok(self.guide.tell([address, &meant], &journey, &situations, now(), out)?)
    }

    /// The route of mail for an address, by the functions that sessions use.
    fn journey(&self, address: &Address, sender: Option<&Address>) -> Answered<(Address, Journey)> {
        let journey = async {
            let meant = self.desk.meant(address, None).await.into_owned();
            let resolution = self.desk.resolve(&meant).await;
            let journey = self.guide.follow(resolution, sender).await;
            (meant, journey)
        };
        unless_stopping(&self.stopping, journey)?.ok_or(Unanswered::Stopping)
    }

    fn verify(&self, address: &Address, out: &mut impl Write) -> Answered<()> {
        let (verdict, why) = self.journey(address, None)?.1.verdict();
        Ok(writeln!(out, "{}", json!({ "verdict": verdict, "why": why }))?)
    }

    fn show(&self, id: QueueId, out: &mut impl Write) -> Answered<()> {
        let account = self.ask(move |queues| Account::of(queues, id, now()))?;
        Ok(message::write(&account, &self.stored(id)?, now(), out)?)
    }

    fn content(&self, id: QueueId, from: u64, out: &mut impl Write) -> Answered<()> {
        Ok(message::write_content(&self.stored(id)?.body, from, out)?)
    }

    fn explain_message(&self, id: QueueId, out: &mut impl Write) -> Answered<()> {
        let account = self.ask(move |queues| Account::of(queues, id, now()))?;
        Ok(account.tell(&self.stored(id)?, now(), out)?)
    }

    fn stored(&self, id: QueueId) -> Answered<Stored> {
        self.desk.spool.message(id).map_err(|error| match error {
            spool::ReadError::Unknown => Unanswered::No(format!(
                "no message {id} in the queue: it is finished or never existed; see the log for its history"
            )),
            error => Unanswered::No(format!("cannot read {id}: {error}")),
        })
    }

    fn table(&self, name: &str) -> Answered<&Arc<dyn lookup::Table>> {
        self.tables.find(name).ok_or_else(|| Unanswered::No(format!("no such table: {name:?}")))
    }

    fn table_get(&self, name: &str, key: &str) -> Answered<Told> {
        let table = self.table(name)?;
        unless_stopping(&self.stopping, Told::ask(&**table, key))?.ok_or(Unanswered::Stopping)
    }

    fn table_stats(&self, name: Option<&str>) -> Answered<Vec<Value>> {
        let meant = self.tables_and_lists().filter(|(_, table)| name.is_none_or(|name| name == table.name()));
        let rows: Vec<_> = meant.map(|(kind, table)| tables::row(table.name(), kind, table.stats().as_ref())).collect();
        match name {
            Some(name) if rows.is_empty() => self.table(name).map(|_| rows),
            _ => Ok(rows),
        }
    }

    /// All tables and DNS lists, with their types. A DNS list has the name of its zone, unless a
    /// table has that name.
    fn tables_and_lists(&self) -> impl Iterator<Item = (&'static str, &Arc<dyn lookup::Table>)> {
        let lists = self.lists.iter().filter(|list| self.tables.find(list.name()).is_none());
        self.tables.iter().chain(lists.map(|list| ("dnsbl", list)))
    }

    fn table_accept(&self, name: &str) -> Answered<()> {
        match self.table(name)?.accept_removals() {
            true => Ok(()),
            false => Err(Unanswered::No(format!("table {name:?} has no removals held back"))),
        }
    }

    /// The main thread reloads, one request at a time.
    fn reload(&self, out: &mut impl Write) -> Answered<()> {
        let (wish, answered) = Wish::new();
        self.orders.send(wish).map_err(|_| Unanswered::Stopping)?;
        let answer: Answer = answered.recv().map_err(|_| Unanswered::Stopping)?;
        Ok(writeln!(out, "{}", json!({ "code": answer.code, "text": answer.text }))?)
    }

    fn load(&self) -> String {
        load::text(&self.desk.load.report(), &self.desk.refusals, now())
    }

    fn reading(&self) -> Answered<Reading> {
        Ok(Reading {
            sessions: self.desk.gate.sessions(),
            census: self.ask(|queues| Census::of(queues))?,
            attempts: self.attempts.counted(),
            notices_dropped: self.attempts.notices_dropped(),
            refusals: Refusal::ALL.map(|refusal| (refusal.name(), self.desk.refusals.counted(refusal))).into(),
            access: self
                .desk
                .access
                .iter()
                .flat_map(Access::counted)
                .map(|(rule, count)| (rule.into(), count))
                .collect(),
            lists_unanswered: self.desk.access.as_ref().map_or(0, Access::unanswered),
            handshakes: self.desk.handshakes.counted(),
            logins: self.desk.logins.as_ref().map(|logins| logins.credentials.stats()),
            load: self.desk.load.report(),
            log_lines_dropped: self.log.dropped(),
            relaxed: self.relaxed,
            spool: self.desk.spool.stats(),
            tables: self.tables_and_lists().filter_map(|(_, it)| Some((it.name().into(), it.stats()?))).collect(),
        })
    }
}

fn tally_places(queues: &Queues, filter: &Filter) -> Result<HashMap<Place, Tally>, NoSuchQueue> {
    let now = now();
    let mut sieve = Sieve::new(filter, queues, now)?;
    let meant = queues.entries().filter(|entry| sieve.passes(entry));
    let tallies: HashMap<Destination, Tally> = summary::tally(meant, now, |entry| entry.destination);
    Ok(tallies.into_iter().map(|(destination, tally)| (Place::of(queues, destination), tally)).collect())
}

fn write_rows(rows: &[Value], out: &mut impl Write) -> io::Result<()> {
    rows.iter().try_for_each(|row| writeln!(out, "{row}"))
}

fn now() -> Timestamp {
    SystemTime::now().into()
}
