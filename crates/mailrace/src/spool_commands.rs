//! `mailrace spool`: inspects the lanes of a stopped server, without changing anything.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use spool::{Disk, FolderDisk, Inspection};

use crate::exit::{self, ExitError};
use crate::output::output;

/// Shows the content of each segment.
pub fn inspect(lanes: &[PathBuf]) -> anyhow::Result<()> {
    let mut out = output();
    for lane in lanes {
        let inspection = inspect_lane(lane, false)?;
        writeln!(out, "{}", lane.display())?;
        for segment in &inspection.segments {
            let state = match segment.number {
                None => "free".to_owned(),
                Some(number) => format!(
                    "use {number}, {}: {} messages, {} bytes of bodies, {} outcomes",
                    if segment.sealed { "sealed" } else { "not sealed" },
                    segment.messages,
                    segment.body_bytes,
                    segment.outcomes,
                ),
            };
            writeln!(out, "  {}  {state}", segment.name)?;
        }
        write_damage(&mut out, &inspection)?;
    }
    Ok(())
}

/// Reads everything and verifies every checksum.
pub fn verify(lanes: &[PathBuf]) -> anyhow::Result<()> {
    let mut out = output();
    let mut damaged = 0;
    for lane in lanes {
        let inspection = inspect_lane(lane, true)?;
        let messages: u64 = inspection.segments.iter().map(|segment| segment.messages).sum();
        damaged += inspection.segments.iter().map(|segment| segment.damage.len()).sum::<usize>();
        writeln!(out, "{}: {} segments, {messages} messages", lane.display(), inspection.segments.len())?;
        write_damage(&mut out, &inspection)?;
    }
    match damaged {
        0 => Ok(()),
        count => Err(ExitError { code: exit::NEGATIVE, text: format!("{count} damaged places") }.into()),
    }
}

fn inspect_lane(lane: &Path, bodies: bool) -> anyhow::Result<Inspection> {
    let named = || format!("the lane {}", lane.display());
    if !lane.is_dir() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        return Err(missing).with_context(named);
    }
    let folder = FolderDisk::open(lane).with_context(named)?;
    if let Err(error) = folder.lock() {
        let text = format!("the lane {} is in use by a server: {error}", lane.display());
        return Err(ExitError { code: exit::UNAVAILABLE, text }.into());
    }
    spool::inspect(&folder, bodies).with_context(named)
}

fn write_damage(out: &mut impl Write, inspection: &Inspection) -> io::Result<()> {
    for segment in &inspection.segments {
        for damage in &segment.damage {
            writeln!(out, "  {}  damaged: {damage}", segment.name)?;
        }
    }
    inspection.aside.iter().try_for_each(|name| writeln!(out, "  {name}  set aside earlier"))
}
