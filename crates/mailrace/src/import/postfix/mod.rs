//! A Postfix configuration folder, read and written anew as a mailrace.toml.

pub mod expand;
pub mod main_cf;
pub mod master_cf;
mod words;
