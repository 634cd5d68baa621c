//! The code of the binary, as a library so that tests and fuzz targets can use it.
//!
//! `cli` and `command` are the command line. `serve` starts the server, `signals` has the commands to its main thread,
//! `mail_flow` opens the spool and starts deliveries, and `reload` changes the
//! configuration, with what `server_parts` builds; `listeners` has their services, with what `intake_context`
//! and `retrieval_parts` give them, and `mailbox_locator` finds mailboxes. `control_client` asks a running server. `from_config`, `tables`, `logins` and `certificates`
//! translate or open what the configuration names, and `cluster` joins a cluster. `inject` takes mail from local programs and
//! leaves it in the folder of `intake::drop_folder`, for which `drop_notices` writes the notices.
//! `message_log` finds a message in the log, for operators; `log_lines` reads its lines. `file_stamp` tells whether a file has changed.
//! `check`, `compare_command`, `dns_command`, `import_command`, `log_summary`, `password`, `manual`, `report_command`, `spool_commands`,
//! `tune_apply`, `tune_command` and `tune_runs` are commands; `privileges`, `service`, `exit`, `output`, `stderr` and
//! `sys` concern the process.

pub mod certificates;
pub mod check;
pub mod cli;
pub mod cluster;
pub mod command;
pub mod compare_command;
pub mod control_client;
pub mod dkim_command;
pub mod dns_command;
pub mod drop_notices;
pub mod exit;
mod file_stamp;
pub mod from_config;
pub mod import_command;
pub mod inject;
pub mod intake_context;
pub mod listeners;
mod log_lines;
pub mod log_summary;
pub mod logins;
mod mail_flow;
pub mod mailbox_locator;
pub mod manual;
pub mod message_log;
mod output;
pub mod password;
pub mod pipe_launcher;
pub mod privileges;
pub mod relay_logins;
pub mod reload;
pub mod report_command;
pub mod report_sender;
pub mod retrieval_parts;
pub mod sender_parts;
pub mod serve;
pub mod server_parts;
mod service;
mod signals;
pub mod signing;
pub mod spool_commands;
mod stderr;
mod sys;
pub mod tables;
mod tls_reports;
pub mod token_command;
pub mod tune_apply;
pub mod tune_command;
pub mod tune_runs;
