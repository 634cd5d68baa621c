//! The replies of the machine itself, without their CRLF. Response codes follow RFC 2449 section 8
//! and RFC 3206.

use super::OpenRefusal;
use crate::sasl::SaslRefusal;

/// A negative reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// Begins with `-ERR`.
    pub(super) text: &'static str,
    /// The client made a mistake, which counts towards its limit of errors.
    pub(super) is_error: bool,
}

const fn error(text: &'static str) -> Refusal {
    Refusal { text, is_error: true }
}

const fn answer(text: &'static str) -> Refusal {
    Refusal { text, is_error: false }
}

pub(super) const USER_OK: &str = "+OK send the password";
pub(super) const READY_FOR_TLS: &str = "+OK begin the TLS handshake";
pub(super) const UTF8_OK: &str = "+OK UTF8 enabled";
pub(super) const NOOP_OK: &str = "+OK";
pub(super) const DELETED: &str = "+OK marked as deleted";
pub(super) const TOP_FOLLOWS: &str = "+OK top of the message follows";
pub(super) const QUIT_OK: &str = "+OK bye";

/// RFC 2449 section 5. What depends on the session comes after these.
pub(super) const CAPABILITIES: &str = "+OK capabilities follow\r\nTOP\r\nUIDL\r\nRESP-CODES\r\nAUTH-RESP-CODE\r\n\
                                       PIPELINING\r\nUTF8 USER\r\nLANG\r\nIMPLEMENTATION Mailrace";
/// RFC 6856 section 3. All replies are in English, whatever the language.
pub(super) const LANGUAGES: &str = "+OK languages follow\r\ni-default Default language\r\nen English\r\n.";
pub(super) const ENGLISH: &str = "+OK en English";
pub(super) const DEFAULT_LANGUAGE: &str = "+OK i-default Default language";

pub(super) const UNKNOWN_COMMAND: Refusal = error("-ERR unknown command");
pub(super) const LINE_TOO_LONG: Refusal = error("-ERR line too long");
pub(super) const NO_ARGUMENTS: Refusal = error("-ERR command takes no arguments");
pub(super) const MESSAGE_SYNTAX: Refusal = error("-ERR expected the number of a message");
pub(super) const TOP_SYNTAX: Refusal = error("-ERR expected TOP message lines");
pub(super) const USER_SYNTAX: Refusal = error("-ERR expected USER name");
pub(super) const AUTH_SYNTAX: Refusal = error("-ERR expected AUTH mechanism [initial-response]");
pub(super) const UNKNOWN_MECHANISM: Refusal = error("-ERR authentication mechanism not offered");
pub(super) const USER_FIRST: Refusal = error("-ERR send USER first");
pub(super) const LOG_IN_FIRST: Refusal = error("-ERR log in first");
pub(super) const LOGGED_IN_ALREADY: Refusal = error("-ERR already logged in");
pub(super) const SECURED_ALREADY: Refusal = error("-ERR TLS is already active");
pub(super) const TLS_NOT_OFFERED: Refusal = error("-ERR TLS is not available");
/// RFC 2595 section 2.2.
pub(super) const TLS_REQUIRED: Refusal = error("-ERR login requires TLS: send STLS first");
/// There is no STLS to send.
pub(super) const LOGIN_IMPOSSIBLE: Refusal = error("-ERR login requires TLS");
/// RFC 6856 section 3.
pub(super) const UNKNOWN_LANGUAGE: Refusal = answer("-ERR this language is not available");

pub(super) const NO_SUCH_MESSAGE: Refusal = answer("-ERR no such message");
pub(super) const IS_DELETED: Refusal = answer("-ERR message is marked as deleted");
pub(super) const GONE: Refusal = answer("-ERR message was deleted by another program");
pub(super) const UNREADABLE: Refusal = answer("-ERR [SYS/TEMP] message cannot be read now, try again later");
/// RFC 1939 section 6.
pub(super) const NOT_UPDATED: &str = "-ERR [SYS/TEMP] some deleted messages were not removed";

pub(super) const CLEAR_TEXT_AFTER_STLS: &str = "-ERR clear text after STLS; closing";
pub(super) const TOO_MANY_COMMANDS: &str = "-ERR too many commands without progress; closing";
pub(super) const TOO_MANY_ERRORS: &str = "-ERR too many errors; closing";
pub(super) const TOO_MANY_FAILED_LOGINS: &str = "-ERR [AUTH] too many failed logins; closing";
pub(super) const SHUTDOWN: &str = "-ERR [SYS/TEMP] server is shutting down; nothing was deleted";
/// These close the session without a reply (RFC 1939 section 3).
pub(super) const IDLE: &str = "idle for too long";
pub(super) const LOGIN_TOO_LATE: &str = "no login in time";
pub(super) const SESSION_TOO_LONG: &str = "session too long";
pub(super) const CONTENT_FAILED: &str = "a message ended before its announced length";

/// RFC 2449 section 8.1.1, RFC 3206 section 4.
pub(super) fn open_refused(refusal: OpenRefusal) -> Refusal {
    answer(match refusal {
        OpenRefusal::InUse => "-ERR [IN-USE] mailbox is open in another session",
        OpenRefusal::Unavailable => "-ERR [SYS/TEMP] mailbox is not available, try again later",
        OpenRefusal::NoMailbox => "-ERR [SYS/PERM] you have no mailbox",
        OpenRefusal::OtherHost => "-ERR [SYS/PERM] your mailbox is on another host",
    })
}

/// After `[AUTH]` clients ask the user for another password; after `[SYS/TEMP]` they retry with the
/// same one (RFC 3206 section 4). Failed logins have a limit of their own.
pub(super) fn login_refused(refusal: SaslRefusal) -> Refusal {
    match refusal {
        SaslRefusal::TooLong | SaslRefusal::InvalidText | SaslRefusal::Credentials | SaslRefusal::Authzid => {
            answer("-ERR [AUTH] authentication failed")
        }
        SaslRefusal::Throttled => answer("-ERR [SYS/TEMP] too many failures, try again later"),
        SaslRefusal::Unavailable => answer("-ERR [SYS/TEMP] temporary authentication failure"),
        SaslRefusal::Malformed => error("-ERR malformed authentication data"),
        SaslRefusal::LineTooLong => LINE_TOO_LONG,
        SaslRefusal::Unsupported => error("-ERR unsupported parameter of the mechanism"),
        SaslRefusal::Cancelled => answer("-ERR authentication cancelled"),
    }
}
