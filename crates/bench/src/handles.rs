//! How many files and sockets this process may have open. A load of ten thousand connections needs more than the
//! usual 1,024. Where the hard limit is too low it is said before anything is sent, instead of connection by connection.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Fault;

/// Raises the soft limit to the hard one. It is a fault when that is less than `needed`.
pub(crate) fn raise(needed: u64) -> Result<(), Fault> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Some(most) = maximum.filter(|&most| most < needed) {
        let text = format!("{needed} open files are needed, and the system allows {most} (RLIMIT_NOFILE)");
        return Err(Fault::Usage(text));
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    raised.map_err(|error| Fault::system("raising RLIMIT_NOFILE")(error.into()))
}
