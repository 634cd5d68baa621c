//! The common keys of tables outside of memory: limits and caches.

use lookup::layers::{CacheSettings, Settings};

use crate::config::key::{self, Kind};
use crate::config::section::Section;

/// `wait` and `cache`. `cached` is whether there is a cache by default.
pub(super) fn settings(section: &mut Section<'_, '_>, cached: bool) -> Settings {
    let or = Settings::default();
    Settings { wait_max: section.take_or("wait", &key::SPAN, or.wait_max), cache: cache(section, cached), ..or }
}

/// The same with `batch`, `concurrency` and `breaker`, for network tables.
pub(super) fn network_settings(section: &mut Section<'_, '_>) -> Settings {
    let or = settings(section, true);
    let batch_max = section.take_or("batch", &key::BATCH, or.batch_max);
    let concurrency = section.take_or("concurrency", &key::CONNECTIONS, or.concurrency);
    let Some(mut breaker) = section.section("breaker") else { return Settings { batch_max, concurrency, ..or } };
    Settings {
        batch_max,
        concurrency,
        failures_max: breaker.take_or("failures", &Kind::COUNT, or.failures_max),
        probe_every: breaker.take_or("probe", &key::SPAN, or.probe_every),
        ..or
    }
}

/// `cache`: false, or a section in which all keys have defaults.
fn cache(section: &mut Section<'_, '_>, cached: bool) -> Option<CacheSettings> {
    let or = CacheSettings::default();
    let mut section = match section.section_or_false("cache") {
        None => return cached.then_some(or),
        Some(section) => section?,
    };
    Some(CacheSettings {
        ttl: section.take_or("ttl", &key::SPAN, or.ttl),
        negative_ttl: section.take_or("negative_ttl", &key::SPAN_OR_ZERO, or.negative_ttl),
        stale_if_error: section.take_or("stale_if_error", &key::SPAN_OR_ZERO, or.stale_if_error),
        entries: section.take_or("entries", &Kind::COUNT, or.entries),
    })
}
