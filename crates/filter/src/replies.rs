//! Replies of checks.

use std::borrow::Cow;

use mail::{EnhancedCode, Reply};

const fn static_reply(code: u16, enhanced: EnhancedCode, text: &'static str) -> Reply {
    Reply { code, enhanced: Some(enhanced), text: Cow::Borrowed(text) }
}

/// RFC 5321 section 3.1: sent instead of the banner.
pub(crate) const CLIENT_DENIED: Reply = static_reply(554, EnhancedCode(5, 7, 1), "Access denied");
pub(crate) const DENIED: Reply = static_reply(550, EnhancedCode(5, 7, 1), "Access denied");
pub(crate) const CLIENT_DEFERRED: Reply =
    static_reply(421, EnhancedCode(4, 7, 1), "Access temporarily denied, try again later");
pub(crate) const DEFERRED: Reply =
    static_reply(451, EnhancedCode(4, 7, 1), "Access temporarily denied, try again later");
pub(crate) const RECIPIENT_DEFERRED: Reply =
    static_reply(450, EnhancedCode(4, 7, 1), "Access temporarily denied, try again later");
pub(crate) const ACCESS_UNAVAILABLE: Reply =
    static_reply(451, EnhancedCode(4, 3, 0), "Access rules unavailable, try again later");
