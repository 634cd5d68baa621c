//! A proxy for IMAP and POP3: the user logs in here, then this host logs in at the one that stores
//! the mailbox, and from there on bytes pass through ([`net::Tunnel`]).
//!
//! | step   | what is wrong                                | the client gets                           |
//! |--------|----------------------------------------------|-------------------------------------------|
//! | verify | name or password, the throttle               | a failed login, as without a proxy        |
//! | locate | no mailbox, a table is unavailable           | a permanent or a temporary refusal        |
//! | connect | the backend is down, or was a moment ago    | a temporary refusal, at once if it is known ([`BackendHosts`]) |
//! | log in | the backend refuses                          | its words if it gives a code, or a temporary refusal |
//!
//! With [`BackendAccount::UserUnchecked`] the backend verifies, so that the last three steps come
//! first.

mod backend_address;
mod backend_hosts;
mod backend_login;
mod imap;
mod login_machine;
mod pop3;
mod session;
mod settings;

pub use backend_address::{BackendAddress, BackendAddressError};
pub use backend_hosts::{BackendHosts, BackendLimits, BackendResolver};
pub use imap::ImapProxyProtocol;
pub use pop3::Pop3ProxyProtocol;
pub use settings::{BackendAccount, BackendTls, MasterUser, MasterUserForm, ProxySettings};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RetrievalListener;

    /// The size of what a function with four arguments returns.
    fn size_of_result<A, B, C, D, R>(_function: impl FnOnce(A, B, C, D) -> R) -> usize {
        size_of::<R>()
    }

    #[test]
    fn an_idle_session_is_small() {
        let imap = size_of_result(net::serve_connection::<RetrievalListener<ImapProxyProtocol>>);
        let pop3 = size_of_result(net::serve_connection::<RetrievalListener<Pop3ProxyProtocol>>);
        assert!(imap.max(pop3) <= 2048, "{imap} and {pop3} octets; a server has thousands of sessions");
    }
}
