//! What the server says of one run: the program by its name, and the values of macros.

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunRequest {
    pub(super) program: String,
    pub(super) queue_id: String,
    pub(super) size: u64,
    /// Empty if there is none.
    pub(super) client_address: String,
    /// Empty: the null sender.
    pub(super) sender: String,
    pub(super) recipients: Vec<String>,
}
