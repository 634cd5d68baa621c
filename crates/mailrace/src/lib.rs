//! The binary's own rooms, as a library so that tests and fuzz targets can reach them.
//!
//! `config` is the configuration file, `cli` the command line, `log` the log lines, `privileges` the process's
//! rights. `main.rs` only starts [`command::run`].

pub mod config;
