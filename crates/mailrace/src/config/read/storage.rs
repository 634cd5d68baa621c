//! `[spool]`, `[log]` and `[admin]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;

use super::{Unique, filled};
use crate::config::key::{self, Kind};
use crate::config::section::{Choice, Section};
use crate::config::{Admin, Durability, Log, LogFormat, LogTarget, SOCKET_PATH_OCTETS_MAX, Spool};

const DURABILITY: Choice<bool> = Choice { built: &[("commit", false), ("relaxed", true)], later: &[] };

pub(super) fn spool(document: &mut Section<'_, '_>, data_dir: &Path, spill_above: u64) -> Spool {
    let or = Spool::under(data_dir);
    let Some(mut section) = document.section("spool") else { return or };
    let lanes = section.list("lanes", &key::TEXT).map(|lanes| lanes_of(&section, &lanes, data_dir));
    let segment = section.placed("segment", &key::SEGMENT);
    if let Some(segment) = segment.as_ref().filter(|segment| *segment.get_ref() / 4 < spill_above) {
        let label = format!("expected at least four times `limits.spill_above`, which is {spill_above} bytes");
        section.state(segment.span(), "segment", "has an invalid value", label);
    }
    Spool {
        lanes: lanes.unwrap_or(or.lanes),
        durability: durability(&mut section),
        segment_octets: segment.map_or(or.segment_octets, Spanned::into_inner),
        spare_segments: section.take_or("spare_segments", &Kind::COUNT_OR_ZERO, or.spare_segments),
        space_min: section.take_or("space_min", &key::SIZE, or.space_min),
        inodes_min: section.take_or("inodes_min", &Kind::COUNT_OR_ZERO, or.inodes_min),
    }
}

fn lanes_of(section: &Section<'_, '_>, lanes: &[Spanned<String>], data_dir: &Path) -> Vec<PathBuf> {
    if lanes.is_empty() {
        section.state(section.place(), "lanes", "is empty", "expected at least one folder".into());
    }
    let mut unique = Unique::default();
    let lane = |template: &Spanned<String>| {
        let lane = filled(section, "lanes", template, data_dir)?;
        unique.claim(section, "lanes", &lane.to_string_lossy(), template.span());
        Some(lane)
    };
    lanes.iter().filter_map(lane).collect()
}

fn durability(section: &mut Section<'_, '_>) -> Durability {
    let relaxed = section.choice("durability", &DURABILITY).unwrap_or(false);
    let sync_every = section.placed("sync_every", &key::SPAN);
    match sync_every {
        Some(every) if !relaxed => {
            let label = "expected only with durability = \"relaxed\": \"commit\" syncs before every 250";
            section.state(every.span(), "sync_every", "is not allowed here", label.into());
            Durability::Commit
        }
        _ if !relaxed => Durability::Commit,
        every => Durability::Relaxed { sync_every: every.map_or(Duration::from_secs(1), Spanned::into_inner) },
    }
}

const LOG_FORMAT: Choice<LogFormat> =
    Choice { built: &[("text", LogFormat::Text), ("json", LogFormat::Json)], later: &[] };

pub(super) fn log(document: &mut Section<'_, '_>, data_dir: &Path) -> Log {
    let or = Log::default();
    let Some(mut section) = document.section("log") else { return or };
    let to = section.placed("to", &key::TEXT).filter(|to| to.get_ref() != "stderr");
    let file = to.and_then(|template| filled(&section, "to", &template, data_dir));
    Log {
        format: section.choice("format", &LOG_FORMAT).unwrap_or(or.format),
        to: file.map_or(or.to, LogTarget::File),
        queue: section.take_or("queue", &Kind::COUNT, or.queue),
        subject: section.take_or("subject", &key::FLAG, or.subject),
    }
}

pub(super) fn admin(document: &mut Section<'_, '_>, data_dir: &Path) -> Admin {
    let or = Admin { socket: data_dir.join("control.sock") };
    let Some(mut section) = document.section("admin") else { return or };
    let Some(template) = section.placed("socket", &key::TEXT) else { return or };
    let Some(socket) = filled(&section, "socket", &template, data_dir) else { return or };
    if socket.as_os_str().len() > SOCKET_PATH_OCTETS_MAX {
        let label = format!("expected a path of at most {SOCKET_PATH_OCTETS_MAX} bytes, the limit of unix sockets");
        section.state(template.span(), "socket", "is too long", label);
    }
    Admin { socket }
}
