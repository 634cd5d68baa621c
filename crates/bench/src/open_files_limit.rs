//! The limit of open files. A load of ten thousand connections needs more than the usual soft limit
//! of 1,024. A hard limit that is too low is reported before the load starts.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::BenchError;

/// Raises the soft limit to the hard limit. Fails if the hard limit is less than `needed`.
pub(crate) fn raise(needed: u64) -> Result<(), BenchError> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Some(most) = maximum.filter(|&most| most < needed) {
        let text = format!("needs {needed} open files, but the limit is {most} (RLIMIT_NOFILE)");
        return Err(BenchError::Usage(text));
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    raised.map_err(|error| BenchError::system("raising RLIMIT_NOFILE")(error.into()))
}
