//! The code of the binary, as a library so that tests and fuzz targets can use it.
//!
//! `cli` and `command` are the command line, `config` the configuration file. `serve` starts the
//! server and `reload` changes its configuration; `flow` delivers accepted messages, `workers` run
//! the sessions with what `desk` gives them, `admin` is the control socket. `plan`, `tables`,
//! `logins`, `certificates` and `quota` translate or open what the configuration names; `log`,
//! `line` and `metrics` report. `inject` takes mail from local programs and leaves it in
//! `maildrop`. `check`, `import`, `log_summary`, `password`, `manual` and `spool_tools` are
//! commands; `privileges`, `service`, `exit`, `output`, `say` and `terminal` concern the process.

pub mod admin;
pub mod certificates;
pub mod check;
pub mod cli;
pub mod command;
pub mod config;
pub mod desk;
pub mod exit;
pub mod flow;
pub mod import;
pub mod inject;
mod line;
pub mod log;
pub mod log_summary;
pub mod logins;
pub mod maildrop;
pub mod manual;
pub mod metrics;
mod output;
pub mod password;
pub mod plan;
pub mod privileges;
pub mod quota;
pub mod reload;
mod say;
pub mod serve;
mod service;
pub mod spool_tools;
pub mod tables;
mod terminal;
pub mod workers;
