//! Runs the commands. Results go to standard output, everything else to standard error.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use queue::OperatorAction;

use crate::check::{self, ConfigCheck, ConfigSummary};
use crate::cli::{
    AcmeCommand, BenchCommand, Cli, ClusterCommand, Command, DkimCommand, ImportCommand, LaneArgs, LogCommand,
    QueueCommand, ReportsCommand, SpoolCommand, TableCommand, TokenCommand, TuneCommand,
};
use crate::exit::{self, ExitError};
use crate::import_command::NewPlace;
use crate::output::{is_output_closed, output};
use crate::stderr::print_stderr;
use crate::{
    compare_command, control_client, dkim_command, dns_command, import_command, inject, log_summary, manual, password,
    pipe_launcher, report_command, serve, spool_commands, tables, token_command, tune_apply, tune_command, tune_runs,
};
use config::{self, Config, LoadedConfig};

/// Runs the command of the command line.
pub fn run() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(name) = words.first().and_then(inject::ProgramName::from_argv0) {
        return to_exit_code(inject::run(name, None, &words[1..]));
    }
    if words.first().is_some_and(|name| name == pipe_launcher::PROGRAM_NAME) {
        return to_exit_code(pipe_launcher::run());
    }
    let cli = match Cli::read(words) {
        Ok(cli) => cli,
        Err(error) => return print_usage_error(&error),
    };
    to_exit_code(dispatch(&cli))
}

fn to_exit_code(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_output_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print_stderr(exit::FormattedError::from_error(&error).text);
            exit::exit_code(&error)
        }
    }
}

fn dispatch(cli: &Cli) -> anyhow::Result<()> {
    let config = cli.config.as_deref();
    match &cli.command {
        Command::Check => check_config(config),
        Command::Table(command) => table(config, command),
        Command::Serve(how) => serve::run(&load_and_announce(config)?, how.drain_only),
        Command::Queue(command) => queue(&config::load(config)?.config, command),
        Command::Explain(what) => control_client::print_explanation(&config::load(config)?.config, what),
        Command::Dns(args) => dns_command::run(&config::load(config)?.config, args),
        Command::Inject { words } => inject::run(inject::ProgramName::Sendmail, cli.config.clone(), words),
        Command::Reload => control_client::reload(&config::load(config)?.config),
        Command::Drain { within } => control_client::drain(&config::load(config)?.config, within.as_ref()),
        Command::Load => control_client::print_load(&config::load(config)?.config),
        Command::Status { json, node } => control_client::print_status(&config::load(config)?.config, node, *json),
        Command::Spool(SpoolCommand::Inspect(lane)) => spool_commands::inspect(&lane_folders(config, lane)?),
        Command::Spool(SpoolCommand::Verify(lane)) => spool_commands::verify(&lane_folders(config, lane)?),
        Command::Log(LogCommand::Summary(options)) => log_summary::run(options),
        Command::Import(ImportCommand::Postfix { folder, output, installed_in, force }) => {
            import_command::from_postfix(folder, &NewPlace::new(output.as_deref(), installed_in.as_deref(), *force)?)
        }
        Command::Import(ImportCommand::Exim { file, output, installed_in, force }) => {
            let place = NewPlace::new(output.as_deref(), installed_in.as_deref(), *force)?;
            import_command::from_exim(file.as_deref(), &place)
        }
        Command::Bench(command) => run_bench(command),
        Command::Tune(TuneCommand::Measure(options)) => tune_runs::measure(&config::load(config)?, options),
        Command::Tune(TuneCommand::Search(options)) => tune_runs::search(&config::load(config)?, options),
        Command::Tune(TuneCommand::Check(options)) => tune_command::check(&config::load(config)?, options),
        Command::Tune(TuneCommand::Apply(options)) => tune_apply::apply(&config::load(config)?, options),
        Command::Tune(TuneCommand::Revert(options)) => tune_apply::revert(config, options),
        Command::Password { scheme } => password::run(*scheme),
        Command::Dkim(DkimCommand::Generate(options)) => dkim_command::generate(options),
        Command::Dkim(DkimCommand::Show { domain }) => {
            dkim_command::show(&config::load(config)?.config, domain.as_deref())
        }
        Command::Dkim(DkimCommand::Check { domain }) => dkim_command::check(&config::load(config)?.config, domain),
        Command::Reports(ReportsCommand::Show { json }) => {
            control_client::show_reports(&config::load(config)?.config, *json)
        }
        Command::Reports(ReportsCommand::Send { domain, json }) => {
            control_client::send_reports(&config::load(config)?.config, domain, *json)
        }
        Command::Acme(AcmeCommand::Status { json }) => {
            control_client::print_acme_status(&config::load(config)?.config, *json)
        }
        Command::Acme(AcmeCommand::Renew { name }) => {
            control_client::renew_certificates(&config::load(config)?.config, name.as_deref())
        }
        Command::Cluster(ClusterCommand::Status { json }) => {
            control_client::print_lanes(&config::load(config)?.config, *json)
        }
        Command::Cluster(ClusterCommand::Nodes { json }) => {
            control_client::print_nodes(&config::load(config)?.config, *json)
        }
        Command::Cluster(ClusterCommand::Adopt { lane }) => {
            control_client::adopt_lane(&config::load(config)?.config, lane)
        }
        Command::Cluster(ClusterCommand::Forget { target, force }) => {
            control_client::forget_in_cluster(&config::load(config)?.config, target, *force)
        }
        Command::Cluster(ClusterCommand::Drain) => control_client::drain_node(&config::load(config)?.config),
        Command::Token(TokenCommand::Create(args)) => token_command::create(&config::load(config)?.config, args),
        Command::Token(TokenCommand::List(args)) => token_command::list(&config::load(config)?.config, args),
        Command::Token(TokenCommand::Revoke { name }) => token_command::revoke(&config::load(config)?.config, name),
        Command::Man { folder } => Ok(manual::write(folder)?),
        Command::Completions { shell } => Ok(manual::print_completion_script(*shell, &mut output())?),
    }
}

fn table(named: Option<&Path>, command: &TableCommand) -> anyhow::Result<()> {
    match command {
        TableCommand::Build { text, cdb } => tables::build_cdb(text, cdb),
        TableCommand::Get { name, key } => control_client::table_get(&load_and_announce(named)?.config, name, key),
        TableCommand::Stats(how) => control_client::table_stats(&config::load(named)?.config, how),
        TableCommand::Accept { name } => control_client::accept_table_removals(&config::load(named)?.config, name),
    }
}

fn queue(config: &Config, command: &QueueCommand) -> anyhow::Result<()> {
    match command {
        QueueCommand::List(how) => control_client::print_queue(config, how),
        QueueCommand::Show(how) => control_client::print_message(config, how),
        QueueCommand::History(how) => control_client::print_history(config, how),
        QueueCommand::Hold(how) => control_client::apply_queue_action(config, OperatorAction::Hold, how),
        QueueCommand::Release(how) => control_client::apply_queue_action(config, OperatorAction::Release, how),
        QueueCommand::Retry(how) => control_client::apply_queue_action(config, OperatorAction::Retry, how),
        QueueCommand::Remove(how) => control_client::apply_queue_action(config, OperatorAction::Remove, how),
        QueueCommand::Bounce(how) => control_client::apply_queue_action(config, OperatorAction::Bounce, how),
        QueueCommand::Pause(how) => control_client::pause(config, how),
        QueueCommand::Resume(what) => control_client::resume(config, what),
        QueueCommand::Redirect(how) => control_client::redirect(config, how),
        QueueCommand::Redirects { json } => control_client::print_redirects(config, *json),
        QueueCommand::Pauses { json } => control_client::print_pauses(config, *json),
    }
}

fn run_bench(command: &BenchCommand) -> anyhow::Result<()> {
    let verdict = match command {
        BenchCommand::Smtp(options) => bench::smtp::run(options)?,
        BenchCommand::Sink(options) => bench::sink::run(options)?,
        BenchCommand::Verify(options) => bench::verify::run(options)?,
        BenchCommand::Crash(options) => bench::crash::run(options)?,
        BenchCommand::Pop3(options) => bench::pop3::run(options)?,
        BenchCommand::Login(options) => bench::login::run(options)?,
        BenchCommand::Http(options) => bench::http::run(options)?,
        BenchCommand::Files(options) => bench::files::run(options)?,
        BenchCommand::Load(options) => bench::load_average::run(options)?,
        BenchCommand::Sign(options) => bench::signature::run(options)?,
        BenchCommand::Compare(options) => return compare_command::compare(options),
        BenchCommand::Report(options) => return report_command::report(options),
    };
    match verdict {
        bench::RunVerdict::Good => Ok(()),
        bench::RunVerdict::Bad => Err(ExitError { code: exit::NEGATIVE, text: "the check found errors".into() }.into()),
    }
}

fn lane_folders(config: Option<&Path>, lane: &LaneArgs) -> anyhow::Result<Vec<PathBuf>> {
    match &lane.lane {
        Some(folder) => Ok(vec![folder.clone()]),
        None => Ok(config::load(config)?.config.spool.lanes),
    }
}

/// Help and the version are not errors; anything else is a wrong command line.
fn print_usage_error(error: &clap::Error) -> ExitCode {
    // If the terminal is gone, the error cannot be printed.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(exit::USAGE),
    }
}

fn check_config(config: Option<&Path>) -> anyhow::Result<()> {
    let loaded = config::load(config)?;
    let ConfigCheck { doubts, broken_tables } = check::check(&loaded)?;
    write!(output(), "{}", ConfigSummary(&loaded))?;
    doubts.iter().try_for_each(|doubt| writeln!(output(), "warning: {doubt}"))?;
    broken_tables.iter().for_each(|fault| print_stderr(format_args!("mailrace: {fault}")));
    match broken_tables.into_iter().next() {
        Some(first) => Err(ExitError { text: "some tables cannot be used".into(), ..first }.into()),
        None => Ok(()),
    }
}

/// Reads the configuration and prints where it came from.
pub fn load_and_announce(named: Option<&Path>) -> anyhow::Result<LoadedConfig> {
    let loaded = config::load(named)?;
    print_stderr(format_args!("mailrace: configuration: {}", loaded.source));
    Ok(loaded)
}
