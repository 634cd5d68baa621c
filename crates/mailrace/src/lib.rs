//! The binary's own rooms, as a library so that tests and fuzz targets can reach them.
//!
//! `command` does what `cli` was asked for; `config` is the configuration file and `check` its summary; `log` makes
//! lines of facts; `privileges` are the process's rights; `tables` opens what the directory is asked of.

pub mod check;
pub mod cli;
pub mod command;
pub mod config;
pub mod exit;
mod line;
pub mod log;
pub mod privileges;
pub mod tables;
