//! `[[queue]]` and `[queues]`: the three built-in queues, added ones, and what they share.

use std::fmt::Display;
use std::ops::Range;

use queue::{HopAdoptionPolicy, RetryPolicy, SchedulerPolicy};
use toml::Spanned;

use super::{Unique, read_waits, take_reference};
use crate::error::ConfigError;
use crate::section::Section;
use crate::value_kind::{self, ValueKind};
use crate::{QueueRules, QueueSettings};

/// More queues are probably a mistake; each costs a turn of the scheduler.
const QUEUES_MAX: usize = 1000;

/// What only one queue may have.
#[derive(Default)]
struct SeenQueues {
    names: Unique,
    headers: Unique,
    senders: Unique,
    clients: Unique,
    domains: Unique,
    adopting: Option<Range<usize>>,
    /// The names of held queues, and where the text says so.
    held: Vec<(Box<str>, Range<usize>)>,
}

pub(super) fn queues(document: &mut Section<'_, '_>, tables: &[String]) -> Vec<QueueSettings> {
    let mut seen = SeenQueues::default();
    let mut queues = Vec::from(QueueSettings::built_in());
    for section in document.sections("queue").unwrap_or_default() {
        queue(section, tables, &mut seen, &mut queues);
    }
    if seen.adopting.is_none() {
        let lame = queues.iter_mut().filter(|queue| &*queue.name == QueueSettings::LAME);
        lame.for_each(|lame| lame.adopt = Some(HopAdoptionPolicy::default()));
    }
    let adopting = queues.iter().find(|queue| queue.adopt.is_some()).map(|queue| &queue.name);
    let held = seen.held.into_iter().filter(|(name, _)| adopting == Some(name));
    held.for_each(|(_, place)| document.report_error(held_adopter_error(place)));
    queues
}

/// Its next hops would never be tried again, and their mail would not even expire.
fn held_adopter_error(place: Range<usize>) -> ConfigError {
    let label = "expected at least 1: mail for the next hops that it adopts would never be tried again, nor expire";
    let help = "hold the other queues instead; or raise `failures` and \
                `slower_than` in `adopt`, so that it rarely adopts";
    ConfigError::new(place, "the queue with `adopt` is held", label).with_help(Some(help.into()))
}

/// Changes the queue that the section names, or adds it.
fn queue(mut section: Section<'_, '_>, tables: &[String], seen: &mut SeenQueues, queues: &mut Vec<QueueSettings>) {
    let name = section.take_required("name", &value_kind::TEXT);
    if let Some(name) = &name {
        seen.names.insert(&section, "name", name.get_ref(), name.span());
    }
    let name = name.map(Spanned::into_inner).unwrap_or_default();
    let place = queues.iter().position(|queue| *queue.name == *name);
    let defaults = place.map_or_else(|| QueueSettings::new(&name), |place| queues[place].clone());
    let concurrency = section.take_spanned("concurrency", &ValueKind::COUNT_OR_ZERO);
    let held = concurrency.iter().filter(|concurrency| *concurrency.get_ref() == 0);
    seen.held.extend(held.map(|concurrency| (defaults.name.clone(), concurrency.span())));
    let queue = QueueSettings {
        name: defaults.name,
        concurrency: concurrency.map_or(defaults.concurrency, Spanned::into_inner),
        rules: rules(&mut section, tables, seen),
        retry: section.section("retry").map_or(defaults.retry, retry),
        adopt: section.section("adopt").map(|section| adopt(section, &mut seen.adopting)),
    };
    match place {
        Some(place) => queues[place] = queue,
        None if queues.len() < QUEUES_MAX => queues.push(queue),
        None => {
            let label = format!("expected at most {QUEUES_MAX}, including the built-in ones");
            section.report_error(ConfigError::new(section.span(), "too many queues", label));
        }
    }
}

fn rules(section: &mut Section<'_, '_>, tables: &[String], seen: &mut SeenQueues) -> QueueRules {
    QueueRules {
        sender_table: take_reference(section, "sender_table", "[[table]]", tables)
            .map(|table| table.into_inner().into()),
        headers: read_rules(section, "headers", &value_kind::HEADER_RULE, &mut seen.headers),
        senders: read_rules(section, "senders", &value_kind::SENDER_RULE, &mut seen.senders),
        clients: read_rules(section, "clients", &value_kind::NETWORK, &mut seen.clients),
        domains: read_rules(section, "domains", &value_kind::PATTERN, &mut seen.domains),
    }
}

/// Rules that no other queue has: the later of two equal rules would never match.
fn read_rules<T: Display>(
    section: &mut Section<'_, '_>,
    key: &'static str,
    kind: &ValueKind<T>,
    unique: &mut Unique,
) -> Vec<T> {
    let rules = section.list(key, kind).unwrap_or_default();
    let claim = |rule: Spanned<T>| {
        unique.insert(section, key, &rule.get_ref().to_string().to_lowercase(), rule.span());
        rule.into_inner()
    };
    rules.into_iter().map(claim).collect()
}

fn retry(mut section: Section<'_, '_>) -> RetryPolicy {
    let defaults = RetryPolicy::default();
    let (first, longest) = read_waits(&mut section, defaults.first, defaults.longest);
    RetryPolicy {
        first,
        factor: section.take_or("factor", &value_kind::FACTOR, defaults.factor),
        longest,
        jitter: section.take_or("jitter", &value_kind::FRACTION, defaults.jitter),
        lifetime: section.take_or("lifetime", &value_kind::DURATION, defaults.lifetime),
    }
}

fn adopt(mut section: Section<'_, '_>, adopting: &mut Option<Range<usize>>) -> HopAdoptionPolicy {
    match adopting {
        None => *adopting = Some(section.span()),
        Some(first) => {
            let label = "expected in at most one queue";
            let error = ConfigError::new(section.span(), "two queues have `adopt`", label).with_earlier(first.clone());
            section.report_error(error);
        }
    }
    let defaults = HopAdoptionPolicy::default();
    HopAdoptionPolicy {
        failures: section.take_or("failures", &ValueKind::COUNT, defaults.failures),
        slower_than: section.take_or("slower_than", &value_kind::DURATION, defaults.slower_than),
        release_after: section.take_or("release_after", &value_kind::DURATION, defaults.release_after),
        per_next_hop: section.take_or("per_next_hop", &ValueKind::COUNT, defaults.per_next_hop),
    }
}

/// `[queues]`.
pub(super) fn scheduler(document: &mut Section<'_, '_>) -> SchedulerPolicy {
    let defaults = SchedulerPolicy::default();
    let Some(mut section) = document.section("queues") else { return defaults };
    SchedulerPolicy {
        unrecorded_max: section.take_or("unrecorded", &ValueKind::COUNT, defaults.unrecorded_max),
        bulk_above: section.take_or("bulk_above", &ValueKind::COUNT, defaults.bulk_above),
        single_share: section.take_or("single_share", &ValueKind::COUNT, defaults.single_share),
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    #[test]
    fn every_queue_but_the_one_that_adopts_can_be_held() {
        let (held, adopts) = ("concurrency = 0\n", "adopt = {}\n");
        let queue = |name: &str, settings: &str| format!("[[queue]]\nname = \"{name}\"\n{settings}");
        let parse = |text: &str| Config::parse(text, "text", "host.example").map_err(|errors| errors.to_string());
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
