//! Measures systems side by side: runs in turns, figures with intervals, one file of results, one page.
//!
//! - [`file`](mod@file): the systems and scenarios of `bench compare`; [`engine`] runs them, and [`result_text()`]
//!   shows what came out
//! - [`result`]: the file of results that every measurement of the laboratory writes
//! - [`result_files`]: reads and writes it
//! - [`statistics`]: medians, ratios and their intervals, and whether they decide
//! - [`sequential`]: intervals that may be looked at after every round
//! - [`rounds`]: turns that alternate until the intervals decide
//! - [`measure`]: one run, with the CPU of the system, the load and the machine, and what limited it
//! - [`load_report`]: what a load of `mailrace bench` prints
//! - [`process`], [`cpu`]: programs that are started, awaited, counted and ended; [`Descendants`] finds all of them
//! - [`answer()`]: the answer of a measurement in one sentence
//! - [`against`]: results compared with earlier ones, also as a table for the terminal ([`against_text()`])
//! - [`page`]: results as one page of HTML
//!
//! Nothing that was started outlives its value; the [`interrupt::Interrupt`] ends every wait.

pub mod against;
mod against_text;
mod answer;
mod arrivals;
pub mod cpu;
mod descendants;
pub mod engine;
pub mod error;
pub mod file;
mod instance;
pub mod interrupt;
pub mod limits;
pub mod load_report;
pub mod machine;
pub mod machine_meter;
pub mod measure;
mod numbers;
pub mod page;
mod ports;
pub mod process;
mod process_table;
pub mod ready;
pub mod result;
pub mod result_files;
pub mod rounds;
pub mod sequential;
mod setup_difference;
pub mod statistics;
pub mod template;
mod text;
mod unpaired;
mod words;
mod work_folder;

pub use against_text::against_text;
pub use answer::answer;
pub use descendants::Descendants;
pub use process_table::{ProcessIdentity, send_signal};
pub use text::{ratio_text, result_text};
