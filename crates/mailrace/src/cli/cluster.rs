//! The commands about a cluster, and the option of others that limits them to one node.

use clap::{Args, Subcommand};

/// Commands for a cluster of servers.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show the lanes that this node owns or watches
    Status {
        /// Print a JSON object for each lane
        #[arg(long)]
        json: bool,
    },
    /// Show the nodes that are alive, and whether their configurations differ
    Nodes {
        /// Print a JSON object for each node
        #[arg(long)]
        json: bool,
    },
    /// Take over a lane at once, without waiting until its lease is over
    ///
    /// Its owner must not be alive: a node is for 15 seconds after its last sign of life.
    Adopt {
        /// The lane, as in `mailrace cluster status`
        lane: String,
    },
    /// Forget a node that never comes back, or a lane that no node can take over
    ///
    /// It is refused while the node lives, and while a lane has not been taken over by another node.
    Forget {
        /// The name of the node, or the lane
        target: String,
        /// Delete the streams of lanes that were not taken over, with the mail that only they have
        #[arg(long)]
        force: bool,
    },
    /// Stop this node, and hand its queue to the others at once
    ///
    /// The server ends as after SIGTERM, but others need not wait until its lease is over.
    Drain,
}

/// Which node of a cluster is asked.
#[derive(Args, Clone, Debug, Default)]
pub struct NodeArgs {
    /// In a cluster: only this node [default: all nodes that are alive]
    #[arg(long = "node", value_name = "NAME")]
    pub name: Option<String>,
}
