//! `[spool]`, `[log]` and `[admin]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use load::LoadLimits;
use spool::Durability;
use toml::Spanned;

use super::{Unique, fill_path};
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ValueKind};
use crate::{AdminSettings, SOCKET_PATH_BYTES_MAX, SpoolSettings};
use server_log::{LogFormat, LogSettings, LogTarget};

const DURABILITY: Keywords<bool> = Keywords { supported: &[("commit", false), ("relaxed", true)], planned: &[] };

/// `[spool]`, which also has the limits on free space in `load`.
pub(super) fn spool(
    document: &mut Section<'_, '_>,
    data_dir: &Path,
    spill_above: u64,
    load: &mut LoadLimits,
) -> SpoolSettings {
    let defaults = SpoolSettings::with_data_dir(data_dir);
    let Some(mut section) = document.section("spool") else { return defaults };
    let lanes = section.list("lanes", &value_kind::TEXT).map(|lanes| read_lanes(&section, &lanes, data_dir));
    let segment = section.take_spanned("segment", &value_kind::SEGMENT_SIZE);
    if let Some(segment) = segment.as_ref().filter(|segment| *segment.get_ref() / 4 < spill_above) {
        let label = format!("expected at least four times `limits.spill_above`, which is {spill_above} bytes");
        section.report(segment.span(), "segment", "has an invalid value", label);
    }
    load.space_min = section.take_or("space_min", &value_kind::SIZE, load.space_min);
    load.inodes_min = section.take_or("inodes_min", &ValueKind::COUNT_OR_ZERO, load.inodes_min);
    SpoolSettings {
        lanes: lanes.unwrap_or(defaults.lanes),
        durability: durability(&mut section),
        segment_octets: segment.map_or(defaults.segment_octets, Spanned::into_inner),
        spare_segments: section.take_or("spare_segments", &ValueKind::COUNT_OR_ZERO, defaults.spare_segments),
    }
}

fn read_lanes(section: &Section<'_, '_>, lanes: &[Spanned<String>], data_dir: &Path) -> Vec<PathBuf> {
    if lanes.is_empty() {
        section.report(section.span(), "lanes", "is empty", "expected at least one folder".into());
    }
    let mut unique = Unique::default();
    let lane = |template: &Spanned<String>| {
        let lane = fill_path(section, "lanes", template, data_dir)?;
        unique.insert(section, "lanes", &lane.to_string_lossy(), template.span());
        Some(lane)
    };
    lanes.iter().filter_map(lane).collect()
}

fn durability(section: &mut Section<'_, '_>) -> Durability {
    let relaxed = section.choice("durability", &DURABILITY).unwrap_or(false);
    let sync_every = section.take_spanned("sync_every", &value_kind::DURATION);
    match sync_every {
        Some(every) if !relaxed => {
            let label = "expected only with durability = \"relaxed\": \"commit\" syncs before every 250";
            section.report(every.span(), "sync_every", "is not allowed here", label.into());
            Durability::Commit
        }
        _ if !relaxed => Durability::Commit,
        every => Durability::Relaxed { sync_every: every.map_or(Duration::from_secs(1), Spanned::into_inner) },
    }
}

const LOG_FORMAT: Keywords<LogFormat> =
    Keywords { supported: &[("text", LogFormat::Text), ("json", LogFormat::Json)], planned: &[] };

pub(super) fn log(document: &mut Section<'_, '_>, data_dir: &Path) -> LogSettings {
    let defaults = LogSettings::default();
    let Some(mut section) = document.section("log") else { return defaults };
    let to = section.take_spanned("to", &value_kind::TEXT).filter(|to| to.get_ref() != "stderr");
    let file = to.and_then(|template| fill_path(&section, "to", &template, data_dir));
    LogSettings {
        format: section.choice("format", &LOG_FORMAT).unwrap_or(defaults.format),
        to: file.map_or(defaults.to, LogTarget::File),
        queue: section.take_or("queue", &ValueKind::COUNT, defaults.queue),
        subject: section.take_or("subject", &value_kind::FLAG, defaults.subject),
    }
}

pub(super) fn admin(document: &mut Section<'_, '_>, data_dir: &Path) -> AdminSettings {
    let defaults = AdminSettings { socket: data_dir.join("control.sock") };
    let Some(mut section) = document.section("admin") else { return defaults };
    let Some(template) = section.take_spanned("socket", &value_kind::TEXT) else { return defaults };
    let Some(socket) = fill_path(&section, "socket", &template, data_dir) else { return defaults };
    if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        let label = format!("expected a path of at most {SOCKET_PATH_BYTES_MAX} bytes, the limit of unix sockets");
        section.report(template.span(), "socket", "is too long", label);
    }
    AdminSettings { socket }
}
