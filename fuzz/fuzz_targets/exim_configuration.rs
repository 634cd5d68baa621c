//! Any text is either an error that can be printed, or is imported as a valid configuration.

#![no_main]

use std::io;
use std::path::Path;

use config::Config;
use import::FileReader;
use import::exim::import;
use libfuzzer_sys::fuzz_target;

/// Every file has the same text, so that includes and lists in files are read.
struct OneText;

impl FileReader for OneText {
    fn text(&self, _: &Path) -> io::Result<String> {
        Ok("bob: alice\n10.0.0.0/8\nexample.org\n".into())
    }

    fn names(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(vec!["bob".into(), "a.example".into()])
    }
}

fuzz_target!(|text: &str| {
    match import(text, Path::new("/etc/exim.conf"), "localhost", &OneText, Path::new("/tables")) {
        Ok(made) => {
            let read = Config::parse(&made.text, "fuzz.toml", "localhost");
            assert!(read.is_ok(), "{}\n{}", read.unwrap_err(), made.text);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
