//! `mailrace tune apply` and `mailrace tune revert`: show what would change, and with `--yes` change it. A running server
//! reloads its configuration if no more than that is needed.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use mail::printable;
use tune::apply::{ApplyError, ApplyRequest, ConfigFile, Files, RealFiles};
use tune::{CheckReport, ServerSettings};

use crate::check::{self, ConfigCheck};
use crate::cli::{TuneApplyArgs, TuneRevertArgs};
use crate::control_client;
use crate::exit::{self, ExitError};
use crate::output::output;
use crate::tune_command::host;
use config::{Config, ConfigErrors, ConfigSource, LoadedConfig};

/// Shows the plan, and with `--yes` makes its changes.
///
/// # Errors
///
/// `--root` is not a folder; a file cannot be read; the changes are refused or fail; a running server refuses them; or a
/// knob that was named is one that this command does not change.
pub fn apply(loaded: &LoadedConfig, options: &TuneApplyArgs) -> anyhow::Result<()> {
    let files = files(options.root.as_deref())?;
    if options.yes && tune::apply::end_measurement(&files).map_err(exit_error)? {
        writeln!(output(), "put back what an interrupted measurement had changed\n")?;
    }
    tune::apply::check_finished(&*files).map_err(exit_error)?;
    let host = host(options.root.as_deref())?;
    let request = ApplyRequest { knobs: options.knobs.clone(), all_sure: options.all_sure };
    let path = config_path(&loaded.source, options.root.as_deref());
    let config =
        ConfigFile { path: path.clone(), accepts: &|text| accepts(&loaded.source, text, options.root.is_some()) };
    let plan_for = |report: &CheckReport| tune::apply::plan(&host, &*files, report, &request, &config);
    let report = tune::check(&host, &ServerSettings::from_config(&loaded.config));
    let mut plan = plan_for(&report).map_err(exit_error)?;
    if let Some(edited) = plan.preview.files.iter().find(|file| Ok(&file.path) == path.as_ref()) {
        // What the host needs depends on the configuration as it becomes.
        let changed = parse(&loaded.source, edited.text.as_deref().unwrap_or_default())?;
        let later = tune::check(&host, &ServerSettings::from_config(&changed)).with_settings_of(&report);
        plan = plan_for(&later).map_err(exit_error)?;
    }
    let reloads = options.yes && options.root.is_none() && plan.preview.take_reload();
    write!(output(), "{}", plan.preview)?;
    if plan.preview.is_empty() {
        writeln!(output(), "nothing to change")?;
        return refuse_unmet(&plan.unmet);
    }
    if !options.yes {
        end_without_change(&plan.missing_rights)?;
        return refuse_unmet(&plan.unmet);
    }
    tune::apply::apply(&files, &plan).map_err(exit_error)?;
    writeln!(output(), "changed; `mailrace tune revert` puts everything back")?;
    if reloads {
        reload(&loaded.config)?;
    }
    refuse_unmet(&plan.unmet)
}

/// A script that names a knob has to see that it is not changed.
fn refuse_unmet(knobs: &[String]) -> anyhow::Result<()> {
    if knobs.is_empty() {
        return Ok(());
    }
    let text =
        format!("not changed by this command: {}; the lines above say how to change it by hand", knobs.join(", "));
    Err(ExitError { code: exit::NEGATIVE, text }.into())
}

/// Has the running server read its configuration again, or says how.
fn reload(config: &Config) -> anyhow::Result<()> {
    let socket = config.admin.socket.display();
    writeln!(output(), "reloading the server that answers at {socket}")?;
    if control_client::reload_if_running(config)? {
        return Ok(());
    }
    Ok(writeln!(output(), "none does: if one runs elsewhere, run `mailrace reload` there")?)
}

/// Shows what would be put back, and with `--yes` puts it back.
///
/// # Errors
///
/// `--root` is not a folder; a file cannot be read; a place was changed since; an operation failed; or a running server
/// refuses the former configuration, since it needs a restart.
pub fn revert(config: Option<&Path>, options: &TuneRevertArgs) -> anyhow::Result<()> {
    let files = files(options.root.as_deref())?;
    let mut plan = tune::apply::plan_revert(&*files).map_err(exit_error)?;
    let reloads = options.yes && options.root.is_none() && plan.preview.take_reload();
    write!(output(), "{}", plan.preview)?;
    if !options.yes && !plan.preview.is_empty() {
        return end_without_change(&plan.missing_rights);
    }
    if !options.yes && tune::apply::has_journal(&*files).map_err(exit_error)? {
        return Ok(writeln!(output(), "nothing differs, but a journal is left: add --yes to end it")?);
    }
    // Without a difference there may still be a journal, which ends with this.
    let notes = if options.yes { tune::apply::revert(&files).map_err(exit_error)? } else { Vec::new() };
    notes.iter().try_for_each(|note| writeln!(output(), "{}", printable(note)))?;
    let result = if plan.preview.is_empty() { "nothing to put back" } else { "everything is as it was" };
    writeln!(output(), "{result}")?;
    // Only now, since the file may have had errors until then.
    if reloads { reload(&config::load(config)?.config) } else { Ok(()) }
}

fn end_without_change(missing_rights: &[String]) -> anyhow::Result<()> {
    missing_rights.iter().try_for_each(|missing| writeln!(output(), "missing right: {}", printable(missing)))?;
    let who = if missing_rights.is_empty() { "" } else { "as root, " };
    Ok(writeln!(output(), "nothing is changed: {who}add --yes to do it")?)
}

pub(crate) fn files(root: Option<&Path>) -> anyhow::Result<Arc<dyn Files>> {
    let root = root.unwrap_or(Path::new("/"));
    let files = RealFiles::below(root).with_context(|| format!("opening {}", root.display()))?;
    Ok(Arc::new(files))
}

/// The path of the configuration file below the root, or why there is none.
fn config_path(source: &ConfigSource, root: Option<&Path>) -> Result<String, String> {
    let ConfigSource::File(path) = source else { return Err("there is no configuration file".to_owned()) };
    // The file itself may be a link, which is refused later; those in its folder are followed.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let real = |path: &Path| path.canonicalize().map_err(|error| format!("{}: {error}", path.display()));
    let absolute = real(folder)?.join(path.file_name().unwrap_or_default());
    let below = match root {
        None => absolute.clone(),
        Some(root) => match absolute.strip_prefix(real(root)?) {
            Ok(rest) => Path::new("/").join(rest),
            Err(_) => return Err(format!("{} is not below --root", absolute.display())),
        },
    };
    below.to_str().map(str::to_owned).ok_or_else(|| format!("{} is not UTF-8", below.display()))
}

fn parse(source: &ConfigSource, text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(text, &source.to_string(), &config::machine_name())
}

/// Whether `mailrace check` would accept a text as the configuration. For a copy of another host it is only parsed: the
/// tables, certificates and sockets that it names are not those of this one.
fn accepts(source: &ConfigSource, text: &str, is_copy: bool) -> Result<(), String> {
    let config = parse(source, text).map_err(|error| error.to_string())?;
    if is_copy {
        return Ok(());
    }
    let loaded = LoadedConfig { source: source.clone(), text: text.to_owned(), config };
    let ConfigCheck { broken_tables, .. } = check::check(&loaded).map_err(|error| error.to_string())?;
    broken_tables.first().map_or(Ok(()), |fault| Err(fault.to_string()))
}

/// A refused change has the exit code 1.
pub(crate) fn exit_error(error: ApplyError) -> anyhow::Error {
    let (code, text) = match error {
        ApplyError::Usage(text) => (exit::USAGE, text),
        ApplyError::Refused(text) => (exit::NEGATIVE, text),
        ApplyError::Configuration(text) => (exit::CONFIG, text),
        ApplyError::MissingRights(text) => (exit::PERMISSION, text),
        ApplyError::Failed(text) => (exit::IO, text),
        // The system error determines the code.
        ApplyError::Io { doing, source } => return anyhow::Error::new(source).context(doing),
    };
    ExitError { code, text }.into()
}
