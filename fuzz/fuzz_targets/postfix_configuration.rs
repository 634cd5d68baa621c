//! Any text as main.cf, with another one as master.cf, is imported as a valid configuration. A line of 0x1C separates
//! them.

#![no_main]

use std::io;
use std::path::Path;

use config::Config;
use import::FileReader;
use import::postfix::import;
use libfuzzer_sys::fuzz_target;

/// Every file has the same text, so that tables and lists in files are read.
struct OneText;

impl FileReader for OneText {
    fn text(&self, _: &Path) -> io::Result<String> {
        Ok("bob alice\n10.0.0.0/8 OK\nexample.org REJECT\n/^Subject: x/ DISCARD\n".into())
    }

    fn names(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(vec!["bob".into(), "a.example".into()])
    }
}

fuzz_target!(|text: &str| {
    let (main, master) = text.split_once("\n\u{1c}\n").unwrap_or((text, ""));
    let made = import(main, master, "localhost", &OneText, Path::new("/tables"));
    let read = Config::parse(&made.text, "fuzz.toml", "localhost");
    assert!(read.is_ok(), "{}\n{}", read.unwrap_err(), made.text);
});
