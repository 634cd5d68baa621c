//! Configurations of other mail servers, read and written anew as ours. Nothing of theirs is changed, and what has no
//! counterpart here is told in a comment of the new file: nothing is dropped silently.

pub mod postfix;
