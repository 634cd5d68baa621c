//! Measures systems side by side: runs in turns, figures with intervals, one file of results, one page.
//!
//! - [`result`]: the file of results that every measurement of the laboratory writes
//! - [`statistics`]: medians, ratios and their intervals, and whether they decide
//! - [`rounds`]: turns that alternate until the intervals decide
//! - [`measure`]: one run, with the CPU of the system, the load and the machine, and what limited it
//! - [`process`], [`cpu`]: programs that are started, awaited, counted and ended
//!
//! Nothing that was started outlives its value; the [`interrupt::Interrupt`] ends every wait.

pub mod cpu;
pub mod error;
pub mod interrupt;
pub mod limits;
pub mod machine_meter;
pub mod measure;
pub mod process;
mod process_table;
pub mod ready;
pub mod result;
pub mod rounds;
pub mod statistics;

pub use process_table::ProcessIdentity;
