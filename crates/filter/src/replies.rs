//! Replies of checks.

use mail::{EnhancedCode, Reply};

/// RFC 5321 section 3.1: sent instead of the banner.
pub(crate) const CLIENT_DENIED: Reply = Reply::constant(554, EnhancedCode(5, 7, 1), "Access denied");
pub(crate) const DENIED: Reply = Reply::constant(550, EnhancedCode(5, 7, 1), "Access denied");
pub(crate) const CLIENT_DEFERRED: Reply =
    Reply::constant(421, EnhancedCode(4, 7, 1), "Access temporarily denied, try again later");
pub(crate) const DEFERRED: Reply =
    Reply::constant(451, EnhancedCode(4, 7, 1), "Access temporarily denied, try again later");
pub(crate) const RECIPIENT_DEFERRED: Reply =
    Reply::constant(450, EnhancedCode(4, 7, 1), "Access temporarily denied, try again later");
pub(crate) const ACCESS_UNAVAILABLE: Reply =
    Reply::constant(451, EnhancedCode(4, 3, 0), "Access rules unavailable, try again later");
