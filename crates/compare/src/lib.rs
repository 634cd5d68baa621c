//! Measures systems side by side: runs in turns, figures with intervals, one file of results, one page.
//!
//! - [`result`]: the file of results that every measurement of the laboratory writes
//! - [`result_files`]: reads and writes it
//! - [`statistics`]: medians, ratios and their intervals
//! - [`answer()`]: the answer of a measurement in one sentence
//! - [`against`]: results compared with earlier ones, also as a table for the terminal ([`against_text()`])
//! - [`page`]: results as one page of HTML

pub mod against;
mod against_text;
mod answer;
mod numbers;
pub mod page;
pub mod result;
pub mod result_files;
pub mod statistics;
mod unpaired;
mod words;

pub use against_text::against_text;
pub use answer::answer;
