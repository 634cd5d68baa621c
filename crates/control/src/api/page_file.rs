//! The dashboard: one page with its style and its script, which are part of the program. It loads nothing
//! from elsewhere, and shows only what the API answers to the token that its reader gives.

/// A file of the dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageFile {
    Html,
    Style,
    Script,
}

impl PageFile {
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            PageFile::Html => "text/html; charset=utf-8",
            PageFile::Style => "text/css; charset=utf-8",
            PageFile::Script => "text/javascript; charset=utf-8",
        }
    }

    /// The content.
    pub(super) const fn text(self) -> &'static str {
        match self {
            PageFile::Html => include_str!("../../dashboard/index.html"),
            PageFile::Style => include_str!("../../dashboard/dashboard.css"),
            PageFile::Script => include_str!("../../dashboard/dashboard.js"),
        }
    }
}
