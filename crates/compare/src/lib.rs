//! Measures systems side by side: runs in turns, figures with intervals, one file of results, one page.
//!
//! - [`result`]: the file of results that every measurement of the laboratory writes
//! - [`result_files`]: reads and writes it
//! - [`statistics`]: medians, ratios and their intervals, and whether they decide
//! - [`rounds`]: turns that alternate until the intervals decide
//! - [`measure`]: one run, with the CPU of the system, the load and the machine, and what limited it
//! - [`process`], [`cpu`]: programs that are started, awaited, counted and ended
//! - [`answer()`]: the answer of a measurement in one sentence
//! - [`against`]: results compared with earlier ones, also as a table for the terminal ([`against_text()`])
//! - [`page`]: results as one page of HTML
//!
//! Nothing that was started outlives its value; the [`interrupt::Interrupt`] ends every wait.

pub mod against;
mod against_text;
mod answer;
pub mod cpu;
pub mod error;
pub mod interrupt;
pub mod limits;
pub mod machine_meter;
pub mod measure;
mod numbers;
pub mod page;
pub mod process;
mod process_table;
pub mod ready;
pub mod result;
pub mod result_files;
pub mod rounds;
pub mod statistics;
mod unpaired;
mod words;

pub use against_text::against_text;
pub use answer::answer;
pub use process_table::ProcessIdentity;
