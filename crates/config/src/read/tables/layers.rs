//! The common keys of tables outside of memory: limits and caches.

use lookup::layers::{BackendSettings, CacheSettings};

use crate::section::Section;
use crate::value_kind::{self, ValueKind};

/// `wait` and `cache`. `cached` is whether there is a cache by default.
pub(super) fn read_layer_settings(section: &mut Section<'_, '_>, cached: bool) -> BackendSettings {
    let defaults = BackendSettings::default();
    BackendSettings {
        wait_max: section.take_or("wait", &value_kind::DURATION, defaults.wait_max),
        cache: cache(section, cached),
        ..defaults
    }
}

/// The same with `batch`, `concurrency` and `breaker`, for network tables.
pub(super) fn network_settings(section: &mut Section<'_, '_>) -> BackendSettings {
    let defaults = read_layer_settings(section, true);
    let batch_max = section.take_or("batch", &value_kind::BATCH_SIZE, defaults.batch_max);
    let concurrency = section.take_or("concurrency", &value_kind::CONNECTIONS, defaults.concurrency);
    let Some(mut breaker) = section.section("breaker") else {
        return BackendSettings { batch_max, concurrency, ..defaults };
    };
    BackendSettings {
        batch_max,
        concurrency,
        failures_max: breaker.take_or("failures", &ValueKind::COUNT, defaults.failures_max),
        probe_interval: breaker.take_or("probe", &value_kind::DURATION, defaults.probe_interval),
        ..defaults
    }
}

/// `cache`: false, or a section in which all keys have defaults.
fn cache(section: &mut Section<'_, '_>, cached: bool) -> Option<CacheSettings> {
    let defaults = CacheSettings::default();
    let mut section = match section.section_or_false("cache") {
        None => return cached.then_some(defaults),
        Some(section) => section?,
    };
    Some(CacheSettings {
        ttl: section.take_or("ttl", &value_kind::DURATION, defaults.ttl),
        negative_ttl: section.take_or("negative_ttl", &value_kind::DURATION_OR_ZERO, defaults.negative_ttl),
        stale_if_error: section.take_or("stale_if_error", &value_kind::DURATION_OR_ZERO, defaults.stale_if_error),
        entries: section.take_or("entries", &ValueKind::COUNT, defaults.entries),
    })
}
