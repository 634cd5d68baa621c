//! The binary's own rooms, as a library so that tests and fuzz targets can reach them.
//!
//! `command` does what `cli` was asked for; `config` is the configuration file and `check` its summary; `serve` starts
//! the server, `flow` is the path of a message in it, `admin` its control socket and `metrics` what it counts; `inject`
//! takes mail from programs here, and `maildrop` is the folder where it leaves them; `log` makes lines of facts, and
//! `log_summary` counts them; `say` is for whoever started the process, `output` for results, `terminal` for text of
//! strangers; `privileges` are the process's rights; `quota` knows which mailboxes are full; `tables`
//! opens what the directory is asked of, and `logins` who may log in; `password` makes what a table keeps of a password;
//! `plan` makes of the configuration what the rooms want, `desk` what sessions go by and `workers` their threads; `reload`
//! exchanges all of it; `import` reads what Postfix was told; `service` is what systemd hears, `manual` the pages that are
//! made of the definitions, `exit` the codes; `spool_tools` look into a spool at rest. What `bench` does is a room of its own.

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
