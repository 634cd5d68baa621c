//! The type of a file by the extension of its name (RFC 9110 section 8.3).

/// For files of an unknown type, which browsers store.
const UNKNOWN: &str = "application/octet-stream";

/// The Content-Type of the file at this path.
pub(super) fn content_type(path: &[u8]) -> &'static str {
    let name = path.rsplit(|octet| *octet == b'/').next().unwrap_or(path);
    match name.iter().rposition(|octet| *octet == b'.') {
        Some(dot) => by_extension(&name[dot + 1..].to_ascii_lowercase()),
        None => UNKNOWN,
    }
}

fn by_extension(extension: &[u8]) -> &'static str {
    match extension {
        b"html" | b"htm" => "text/html; charset=utf-8",
        b"css" => "text/css; charset=utf-8",
        b"js" | b"mjs" => "text/javascript; charset=utf-8",
        b"txt" | b"log" => "text/plain; charset=utf-8",
        b"md" => "text/markdown; charset=utf-8",
        b"csv" => "text/csv; charset=utf-8",
        b"ics" => "text/calendar; charset=utf-8",
        b"vcf" => "text/vcard; charset=utf-8",
        b"xml" => "application/xml",
        b"json" | b"map" => "application/json",
        b"webmanifest" => "application/manifest+json",
        b"wasm" => "application/wasm",
        b"pdf" => "application/pdf",
        b"zip" => "application/zip",
        b"gz" | b"tgz" => "application/gzip",
        b"xz" => "application/x-xz",
        b"zst" => "application/zstd",
        b"tar" => "application/x-tar",
        b"eml" => "message/rfc822",
        b"svg" => "image/svg+xml",
        b"png" => "image/png",
        b"jpg" | b"jpeg" => "image/jpeg",
        b"gif" => "image/gif",
        b"webp" => "image/webp",
        b"avif" => "image/avif",
        b"ico" => "image/vnd.microsoft.icon",
        b"woff" => "font/woff",
        b"woff2" => "font/woff2",
        b"ttf" => "font/ttf",
        b"otf" => "font/otf",
        b"mp3" => "audio/mpeg",
        b"ogg" => "audio/ogg",
        b"wav" => "audio/wav",
        b"mp4" => "video/mp4",
        b"webm" => "video/webm",
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_extension_of_the_name_counts() {
        assert_eq!(content_type(b"/a/b.HTML"), "text/html; charset=utf-8");
        assert_eq!(content_type(b"/a.html/b"), UNKNOWN);
        assert_eq!(content_type(b"/a.tar.gz"), "application/gzip");
        assert_eq!(content_type(b"/a."), UNKNOWN);
        assert_eq!(content_type(b"/"), UNKNOWN);
    }
}
