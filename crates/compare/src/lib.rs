//! Measures systems side by side: runs in turns, figures with intervals, one file of results, one page.
//!
//! - [`result`]: the file of results that every measurement of the laboratory writes
//! - [`statistics`]: medians, ratios and their intervals

pub mod result;
pub mod statistics;
