//! The dashboard: one page with its style and its scripts, which are part of the program. It loads nothing
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

/// The modules that the script imports.
const MODULES: [(&str, &str); 8] = [
    ("acts.js", include_str!("../../dashboard/acts.js")),
    ("alerts.js", include_str!("../../dashboard/alerts.js")),
    ("charts.js", include_str!("../../dashboard/charts.js")),
    ("elements.js", include_str!("../../dashboard/elements.js")),
    ("explanations.js", include_str!("../../dashboard/explanations.js")),
    ("lists.js", include_str!("../../dashboard/lists.js")),
    ("messages.js", include_str!("../../dashboard/messages.js")),
    ("server.js", include_str!("../../dashboard/server.js")),
];

/// The module with this name.
pub(super) fn script(name: &str) -> Option<&'static str> {
    MODULES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
