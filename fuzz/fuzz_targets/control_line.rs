//! Any text as a line on the control socket: no panic, and a request that is written is read alike, on one
//! line.

#![no_main]

use control::request::ControlRequest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &str| {
    if let Ok(request) = line.parse::<ControlRequest>() {
        let written = request.to_string();
        assert!(!written.contains('\n'), "{written:?}");
        assert_eq!(written.parse::<ControlRequest>().ok(), Some(request), "{written:?}");
    }
});
