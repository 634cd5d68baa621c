//! Imports the configuration of another mail server. Texts go in and come out; the caller reads and
//! writes files. What has no counterpart is listed in comments of the new file: nothing is dropped
//! silently.

pub mod postfix;
