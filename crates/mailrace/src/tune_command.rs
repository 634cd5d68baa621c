//! `mailrace tune check`: what of this host and of the configuration is not as a mail server needs it.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use mail::printable;

use crate::cli::TuneCheckArgs;
use crate::exit::{self, ExitError};
use crate::output::{output, terminal_width};
use crate::stderr::print_stderr;
use config::LoadedConfig;
use tune::apply::RealFiles;
use tune::{Host, Probes, ResolverTimes, ServerSettings, SyncTimes};

/// What is said where values may be those of a measurement.
pub(crate) const MEASUREMENT_LEFT: &str =
    "a measurement changes values of this host, or was killed: as root, `mailrace tune revert --yes` puts them back";

/// Checks and prints. Findings are an error with the exit code 1.
///
/// # Errors
///
/// `--root` is not a folder.
pub fn check(loaded: &LoadedConfig, options: &TuneCheckArgs) -> anyhow::Result<()> {
    let settings = ServerSettings::from_config(&loaded.config);
    let mut host = host(options.root.as_deref())?;
    let probes = if options.probe { measure(&host, &settings) } else { Probes::default() };
    if let Some(times) = &probes.resolver {
        host = host.with_name_server_time(times.answer_time());
    }
    let report = tune::check(&host, &settings);
    let text = match options.json {
        true => tune::render_json(&report, &probes, options.all),
        false => tune::render_text(&report, &probes, options.all, terminal_width()),
    };
    if !options.json {
        writeln!(output(), "configuration: {}\n", printable(&loaded.source.to_string()))?;
    }
    output().write_all(text.as_bytes())?;
    if is_measured(options.root.as_deref()) {
        print_stderr(format_args!("{MEASUREMENT_LEFT}"));
    }
    match report.findings().count() {
        0 => Ok(()),
        _ => Err(ExitError { code: exit::NEGATIVE, text: "some settings are not as wanted".into() }.into()),
    }
}

/// Whether values may be those of a measurement. Only root can read its journal; for others nothing is said.
fn is_measured(root: Option<&Path>) -> bool {
    let files = RealFiles::below(root.unwrap_or(Path::new("/")));
    files.is_ok_and(|files| tune::apply::has_measurement(&files).unwrap_or(false))
}

/// This host, or a copy of the files of another one.
pub(crate) fn host(root: Option<&Path>) -> anyhow::Result<Host> {
    let Some(root) = root else { return Ok(Host::live()) };
    std::fs::read_dir(root).with_context(|| format!("reading {}", root.display()))?;
    Ok(Host::below(root))
}

/// What cannot be measured does not keep the report from being printed.
fn measure(host: &Host, settings: &ServerSettings) -> Probes {
    let mut probes = Probes::default();
    for lane in &settings.lanes {
        match SyncTimes::measure(lane) {
            Ok(times) => probes.syncs.push(times),
            Err(error) => probes.failures.push(format!("syncs in {}: {error}", lane.display())),
        }
    }
    match ResolverTimes::measure(host, settings) {
        Ok(times) => probes.resolver = times,
        Err(error) => probes.failures.push(format!("the name server: {error}")),
    }
    probes
}
