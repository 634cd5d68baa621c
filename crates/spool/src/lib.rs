//! The log that keeps accepted mail.
pub mod disk;
pub use disk::{Disk, DiskFile, Folder, Space};
