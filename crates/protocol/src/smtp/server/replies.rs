//! The replies of the machine itself. Codes follow RFC 5321 section 4.2, enhanced codes RFC 3463
//! and its registry.
//!
//! Refusals are [`Reply`] values, since they are also logged. The replies of a successful
//! transaction are bytes, ready to send.

use mail::{EnhancedCode, Reply};

pub(super) const MAIL_OK: &[u8] = b"250 2.1.0 sender ok\r\n";
pub(super) const RCPT_OK: &[u8] = b"250 2.1.5 recipient ok\r\n";
pub(super) const START_DATA: &[u8] = b"354 end data with <CR><LF>.<CR><LF>\r\n";
pub(super) const CHUNK_OK: &[u8] = b"250 2.0.0 chunk ok\r\n";
pub(super) const RSET_OK: &[u8] = b"250 2.0.0 ok\r\n";
pub(super) const NOOP_OK: &[u8] = b"250 2.0.0 ok\r\n";
pub(super) const QUIT_OK: &[u8] = b"221 2.0.0 bye\r\n";
pub(super) const HELP_SMTP: &[u8] = b"214 2.0.0 HELO EHLO MAIL RCPT DATA BDAT RSET NOOP VRFY HELP QUIT\r\n";
pub(super) const HELP_LMTP: &[u8] = b"214 2.0.0 LHLO MAIL RCPT DATA BDAT RSET NOOP VRFY HELP QUIT\r\n";
pub(super) const READY_FOR_TLS: &[u8] = b"220 2.0.0 ready to start TLS\r\n";
/// RFC 5321 section 3.5.3: 252 neither confirms nor denies.
pub(super) const VRFY_OK: &[u8] = b"252 2.0.0 not verified; send mail to find out\r\n";

/// The reply to a message if the answer is Accept.
pub(super) const MESSAGE_OK: Reply = Reply::constant(250, EnhancedCode(2, 0, 0), "message accepted");

/// If the driver answered another kind of question.
pub(super) const UNANSWERED: Reply = Reply::constant(451, EnhancedCode(4, 3, 0), "temporary failure, try again later");

pub(super) const UNKNOWN_COMMAND: Reply = Reply::constant(500, EnhancedCode(5, 5, 2), "command not recognised");
pub(super) const NOT_IMPLEMENTED: Reply = Reply::constant(502, EnhancedCode(5, 5, 1), "command not implemented");
pub(super) const LINE_TOO_LONG: Reply = Reply::constant(500, EnhancedCode(5, 5, 2), "line too long");
pub(super) const LINE_BROKEN: Reply =
    Reply::constant(500, EnhancedCode(5, 5, 2), "bare CR, bare LF or NUL in a command; closing");
pub(super) const NOT_UTF8: Reply = Reply::constant(501, EnhancedCode(5, 5, 2), "arguments are not UTF-8");
pub(super) const NO_ARGUMENTS: Reply = Reply::constant(501, EnhancedCode(5, 5, 4), "command takes no arguments");
pub(super) const NEEDS_ARGUMENT: Reply = Reply::constant(501, EnhancedCode(5, 5, 4), "command needs an argument");
pub(super) const BAD_HOST: Reply =
    Reply::constant(501, EnhancedCode(5, 5, 4), "expected one host name or address literal");
pub(super) const MAIL_SYNTAX: Reply = Reply::constant(501, EnhancedCode(5, 5, 4), "expected MAIL FROM:<address>");
pub(super) const RCPT_SYNTAX: Reply = Reply::constant(501, EnhancedCode(5, 5, 4), "expected RCPT TO:<address>");
pub(super) const BDAT_SYNTAX: Reply =
    Reply::constant(501, EnhancedCode(5, 5, 4), "expected BDAT octets [LAST]; closing");
pub(super) const BAD_PARAMETER: Reply = Reply::constant(501, EnhancedCode(5, 5, 4), "invalid parameter value");
pub(super) const REPEATED_PARAMETER: Reply = Reply::constant(501, EnhancedCode(5, 5, 4), "duplicate parameter");
/// RFC 5321 section 4.1.1.11.
pub(super) const UNKNOWN_PARAMETER: Reply = Reply::constant(555, EnhancedCode(5, 5, 4), "parameter not recognised");
/// RFC 6531 section 3.5.
pub(super) const NEEDS_SMTPUTF8: Reply =
    Reply::constant(553, EnhancedCode(5, 6, 7), "non-ASCII address requires SMTPUTF8");

pub(super) const SAY_LHLO: Reply = Reply::constant(500, EnhancedCode(5, 5, 1), "this is LMTP: say LHLO");
pub(super) const SAY_EHLO: Reply = Reply::constant(500, EnhancedCode(5, 5, 1), "this is SMTP: say EHLO");
pub(super) const GREET_FIRST: Reply = Reply::constant(503, EnhancedCode(5, 5, 1), "send HELO, EHLO or LHLO first");
pub(super) const NESTED_MAIL: Reply = Reply::constant(503, EnhancedCode(5, 5, 1), "sender already given");
/// RFC 2920 section 3.1.
pub(super) const OUT_OF_SYNC: Reply =
    Reply::constant(554, EnhancedCode(5, 5, 0), "synchronization error: message sent before the 354; closing");
pub(super) const NEED_MAIL: Reply = Reply::constant(503, EnhancedCode(5, 5, 1), "need MAIL first");
pub(super) const NEED_RCPT: Reply = Reply::constant(503, EnhancedCode(5, 5, 1), "no valid recipients");
/// RFC 3030 section 2.
pub(super) const CHUNKS_BEGUN: Reply = Reply::constant(503, EnhancedCode(5, 5, 1), "only BDAT may follow BDAT");

/// RFC 3207 section 4.
pub(super) const MUST_SECURE: Reply =
    Reply::constant(530, EnhancedCode(5, 7, 0), "Must issue a STARTTLS command first");
pub(super) const SECURED_ALREADY: Reply = Reply::constant(503, EnhancedCode(5, 5, 1), "TLS is already active");
/// RFC 4954 section 6.
pub(super) const AUTHENTICATION_REQUIRED: Reply =
    Reply::constant(530, EnhancedCode(5, 7, 0), "Authentication required");
/// RFC 4954 section 6.
pub(super) const ENCRYPTION_REQUIRED: Reply =
    Reply::constant(538, EnhancedCode(5, 7, 11), "Encryption required for requested authentication mechanism");
/// RFC 4954 section 4.
pub(super) const UNKNOWN_MECHANISM: Reply =
    Reply::constant(504, EnhancedCode(5, 5, 4), "authentication mechanism not offered");
pub(super) const AUTH_SYNTAX: Reply =
    Reply::constant(501, EnhancedCode(5, 5, 4), "expected AUTH mechanism [initial-response]");
pub(super) const LOGGED_IN_ALREADY: Reply = Reply::constant(503, EnhancedCode(5, 5, 1), "already logged in");
pub(super) const NOT_IN_TRANSACTION: Reply =
    Reply::constant(503, EnhancedCode(5, 5, 1), "not during a mail transaction");
pub(super) const CLEAR_TEXT_AFTER_STARTTLS: Reply =
    Reply::constant(554, EnhancedCode(5, 5, 1), "clear text after STARTTLS; closing");

/// Postfix's XCLIENT_README.
pub(super) const XCLIENT_DENIED: Reply = Reply::constant(550, EnhancedCode(5, 7, 0), "XCLIENT not permitted");
pub(super) const XCLIENT_SYNTAX: Reply =
    Reply::constant(501, EnhancedCode(5, 5, 4), "expected XCLIENT attribute=value ...");

pub(super) const TOO_MANY_RECIPIENTS: Reply = Reply::constant(452, EnhancedCode(4, 5, 3), "too many recipients");
pub(super) const MESSAGE_TOO_BIG: Reply = Reply::constant(552, EnhancedCode(5, 3, 4), "message too big");
pub(super) const HEADER_TOO_BIG: Reply = Reply::constant(552, EnhancedCode(5, 3, 4), "message header too big");
pub(super) const BARE_NEWLINE: Reply = Reply::constant(550, EnhancedCode(5, 6, 0), "message has a bare CR or LF");
pub(super) const NUL: Reply = Reply::constant(550, EnhancedCode(5, 6, 0), "message has a NUL");
pub(super) const LOOP: Reply = Reply::constant(554, EnhancedCode(5, 4, 6), "too many Received lines: mail loop");

pub(super) const TOO_MANY_COMMANDS: Reply =
    Reply::constant(421, EnhancedCode(4, 7, 0), "too many commands without mail; closing");
pub(super) const TOO_MANY_ERRORS: Reply = Reply::constant(421, EnhancedCode(4, 7, 0), "too many errors; closing");
pub(super) const TOO_MANY_FAILED_LOGINS: Reply =
    Reply::constant(421, EnhancedCode(4, 7, 0), "too many failed logins; closing");
pub(super) const IDLE: Reply = Reply::constant(421, EnhancedCode(4, 4, 2), "idle for too long; closing");
pub(super) const TOO_SLOW: Reply =
    Reply::constant(421, EnhancedCode(4, 4, 2), "message data rate below minimum; closing");
pub(super) const SESSION_TOO_LONG: Reply = Reply::constant(421, EnhancedCode(4, 4, 2), "session too long; closing");
pub(super) const SHUTDOWN: Reply = Reply::constant(421, EnhancedCode(4, 3, 2), "server is shutting down; closing");
