//! The listing of a folder as a page.

use std::fmt::Write as _;
use std::fs::File;

use protocol::http::server::encode_path;
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;

use crate::http::html::escape;

/// Names in a listing; the page says so if there are more.
const NAMES_MAX: usize = 10_000;

/// The page for this path. Names with a dot are left out. Blocks.
pub(super) fn list_folder(path: &[u8], folder: File) -> Result<Vec<u8>, Errno> {
    let mut names = Vec::new();
    let mut is_cut = false;
    for entry in Dir::new(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.starts_with(b".") {
            continue;
        }
        if names.len() == NAMES_MAX {
            is_cut = true;
            break;
        }
        let slash: &[u8] = if entry.file_type() == FileType::Directory { b"/" } else { b"" };
        names.push([name, slash].concat());
    }
    names.sort_unstable();
    Ok(page(path, &names, is_cut).into_bytes())
}

fn page(path: &[u8], names: &[Vec<u8>], is_cut: bool) -> String {
    let title = escape(path);
    let mut page = format!("<!DOCTYPE html>\n<title>{title}</title>\n<h1>{title}</h1>\n<ul>\n");
    if path != b"/" {
        page.push_str("<li><a href=\"../\">../</a>\n");
    }
    for name in names {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "<li><a href=\"{}\">{}</a>", encode_path(name), escape(name));
    }
    page.push_str("</ul>\n");
    if is_cut {
        let _ = writeln!(page, "<p>More than {NAMES_MAX} names; the others are not listed.");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_links_and_as_text() {
        let page = page(b"/a&b/", &[b"javascript:x".to_vec(), b"<i>\"\xff".to_vec()], true);
        assert!(page.contains("<title>/a&amp;b/</title>"));
        assert!(page.contains("<a href=\"javascript%3Ax\">javascript:x</a>"), "{page}");
        assert!(page.contains("<a href=\"%3Ci%3E%22%FF\">&lt;i&gt;&quot;\u{fffd}</a>"), "{page}");
        assert!(page.contains("<a href=\"../\">") && page.contains("not listed"));
    }
}
