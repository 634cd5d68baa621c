//! `[[queue]]` and `[queues]`: the three built-in queues, added ones, and what they share.

use std::fmt::Display;
use std::ops::Range;

use toml::Spanned;

use super::{Unique, named, waits};
use crate::config::fault::Fault;
use crate::config::key::{self, Kind};
use crate::config::section::Section;
use crate::config::{Adopt, Queue, Retry, Rules, Scheduler};

/// More queues are probably a mistake; each costs a turn of the scheduler.
const QUEUES_MAX: usize = 1000;

/// What only one queue may have.
#[derive(Default)]
struct Claims {
    names: Unique,
    headers: Unique,
    senders: Unique,
    clients: Unique,
    domains: Unique,
    adopting: Option<Range<usize>>,
    /// The names of held queues, and where the text says so.
    held: Vec<(Box<str>, Range<usize>)>,
}

pub(super) fn queues(document: &mut Section<'_, '_>, tables: &[String]) -> Vec<Queue> {
    let mut claims = Claims::default();
    let mut queues = Vec::from(Queue::built_in());
    for section in document.sections("queue").unwrap_or_default() {
        queue(section, tables, &mut claims, &mut queues);
    }
    if claims.adopting.is_none() {
        let lame = queues.iter_mut().filter(|queue| &*queue.name == Queue::LAME);
        lame.for_each(|lame| lame.adopt = Some(Adopt::default()));
    }
    let adopting = queues.iter().find(|queue| queue.adopt.is_some()).map(|queue| &queue.name);
    let held = claims.held.into_iter().filter(|(name, _)| adopting == Some(name));
    held.for_each(|(_, place)| document.state_fault(held_adopter(place)));
    queues
}

/// Its next hops would never be tried again, and their mail would not even expire.
fn held_adopter(place: Range<usize>) -> Fault {
    let label = "expected at least 1: mail for the next hops that it adopts would never be tried again, nor expire";
    let help = "hold the other queues instead; or raise `failures` and \
                `slower_than` in `adopt`, so that it rarely adopts";
    Fault::new(place, "the queue with `adopt` is held", label).with_help(Some(help.into()))
}

/// Changes the queue that the section names, or adds it.
fn queue(mut section: Section<'_, '_>, tables: &[String], claims: &mut Claims, queues: &mut Vec<Queue>) {
    let name = section.required("name", &key::TEXT);
    if let Some(name) = &name {
        claims.names.claim(&section, "name", name.get_ref(), name.span());
    }
    let name = name.map(Spanned::into_inner).unwrap_or_default();
    let place = queues.iter().position(|queue| *queue.name == *name);
    let or = place.map_or_else(|| Queue::new(&name), |place| queues[place].clone());
    let concurrency = section.placed("concurrency", &Kind::COUNT_OR_ZERO);
    let held = concurrency.iter().filter(|concurrency| *concurrency.get_ref() == 0);
    claims.held.extend(held.map(|concurrency| (or.name.clone(), concurrency.span())));
    let queue = Queue {
        name: or.name,
        concurrency: concurrency.map_or(or.concurrency, Spanned::into_inner),
        rules: rules(&mut section, tables, claims),
        retry: section.section("retry").map_or(or.retry, retry),
        adopt: section.section("adopt").map(|section| adopt(section, &mut claims.adopting)),
    };
    match place {
        Some(place) => queues[place] = queue,
        None if queues.len() < QUEUES_MAX => queues.push(queue),
        None => {
            let label = format!("expected at most {QUEUES_MAX}, including the built-in ones");
            section.state_fault(Fault::new(section.place(), "too many queues", label));
        }
    }
}

fn rules(section: &mut Section<'_, '_>, tables: &[String], claims: &mut Claims) -> Rules {
    Rules {
        sender_table: named(section, "sender_table", "[[table]]", tables).map(|table| table.into_inner().into()),
        headers: rules_of(section, "headers", &key::HEADER_RULE, &mut claims.headers),
        senders: rules_of(section, "senders", &key::SENDER_RULE, &mut claims.senders),
        clients: rules_of(section, "clients", &key::NETWORK, &mut claims.clients),
        domains: rules_of(section, "domains", &key::PATTERN, &mut claims.domains),
    }
}

/// Rules that no other queue has: the later of two equal rules would never match.
fn rules_of<T: Display>(
    section: &mut Section<'_, '_>,
    key: &'static str,
    kind: &Kind<T>,
    unique: &mut Unique,
) -> Vec<T> {
    let rules = section.list(key, kind).unwrap_or_default();
    let claim = |rule: Spanned<T>| {
        unique.claim(section, key, &rule.get_ref().to_string().to_lowercase(), rule.span());
        rule.into_inner()
    };
    rules.into_iter().map(claim).collect()
}

fn retry(mut section: Section<'_, '_>) -> Retry {
    let or = Retry::default();
    let (first, longest) = waits(&mut section, or.first, or.longest);
    Retry {
        first,
        factor: section.take_or("factor", &key::FACTOR, or.factor),
        longest,
        jitter: section.take_or("jitter", &key::SHARE, or.jitter),
        lifetime: section.take_or("lifetime", &key::SPAN, or.lifetime),
    }
}

fn adopt(mut section: Section<'_, '_>, adopting: &mut Option<Range<usize>>) -> Adopt {
    match adopting {
        None => *adopting = Some(section.place()),
        Some(first) => {
            let label = "expected in at most one queue";
            let fault = Fault::new(section.place(), "two queues have `adopt`", label).with_earlier(first.clone());
            section.state_fault(fault);
        }
    }
    let or = Adopt::default();
    Adopt {
        failures: section.take_or("failures", &Kind::COUNT, or.failures),
        slower_than: section.take_or("slower_than", &key::SPAN, or.slower_than),
        release_after: section.take_or("release_after", &key::SPAN, or.release_after),
        per_next_hop: section.take_or("per_next_hop", &Kind::COUNT, or.per_next_hop),
    }
}

/// `[queues]`.
pub(super) fn scheduler(document: &mut Section<'_, '_>) -> Scheduler {
    let or = Scheduler::default();
    let Some(mut section) = document.section("queues") else { return or };
    Scheduler {
        unrecorded_max: section.take_or("unrecorded", &Kind::COUNT, or.unrecorded_max),
        mailing_above: section.take_or("mailing_above", &Kind::COUNT, or.mailing_above),
        letters_share: section.take_or("letters_share", &Kind::COUNT, or.letters_share),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn every_queue_but_the_one_that_adopts_can_be_held() {
        let (held, adopts) = ("concurrency = 0\n", "adopt = {}\n");
        let queue = |name: &str, settings: &str| format!("[[queue]]\nname = \"{name}\"\n{settings}");
        let parse = |text: &str| Config::parse(text, "text", "host.example").map_err(|faults| faults.to_string());
        for text in [queue("lame", held), queue("slow", &[held, adopts].concat())] {
            let told = parse(&text).unwrap_err();
            assert!(told.contains("the queue with `adopt` is held") && told.contains("concurrency = 0"), "{told}");
        }
        let other = [queue("lame", held), queue("slow", adopts)].concat();
        for text in [queue("standard", held), queue("lame", "concurrency = 1\n"), other] {
            parse(&text).unwrap();
        }
    }
}
