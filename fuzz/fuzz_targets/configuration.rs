//! Any text is either a valid configuration or gives a list of errors that can be printed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use config::Config;

fuzz_target!(|text: &str| {
    match Config::parse(text, "fuzz.toml", "localhost") {
        Ok(config) => assert!(!config.listeners.is_empty() && !config.spool.lanes.is_empty()),
        Err(faults) => assert!(faults.count() > 0 && !faults.to_string().is_empty()),
    }
});
