//! The commands about the cluster.

use serde_json::Value;

use control::cluster_text;
use control::request::ControlRequest;

use super::{print, request_text, rows};
use config::Config;

/// `mailrace cluster status`.
pub fn print_lanes(config: &Config, as_json: bool) -> anyhow::Result<()> {
    print_rows(config, &ControlRequest::ClusterStatus, as_json, cluster_text::lane_table)?;
    match as_json {
        true => Ok(()),
        false => {
            let metrics = request_text(&config.admin.socket, &ControlRequest::Status)?;
            print(cluster_text::sharing_lines(&rows(&metrics)?))
        }
    }
}

/// `mailrace cluster nodes`.
pub fn print_nodes(config: &Config, as_json: bool) -> anyhow::Result<()> {
    print_rows(config, &ControlRequest::ClusterNodes, as_json, cluster_text::node_table)
}

/// `mailrace cluster adopt`.
pub fn adopt_lane(config: &Config, lane: &str) -> anyhow::Result<()> {
    let request = ControlRequest::ClusterAdopt { lane: lane.to_owned() };
    request_text(&config.admin.socket, &request)?;
    print([format!("lane {lane} is taken over; its mail follows")])
}

/// `mailrace cluster forget`.
pub fn forget_in_cluster(config: &Config, target: &str, force: bool) -> anyhow::Result<()> {
    let request = ControlRequest::ClusterForget { target: target.to_owned(), force };
    let lanes = request_text(&config.admin.socket, &request)?;
    print([format!("{target} is forgotten; lanes given up with their mail: {}", lanes.trim())])
}

/// `mailrace cluster drain`.
pub fn drain_node(config: &Config) -> anyhow::Result<()> {
    request_text(&config.admin.socket, &ControlRequest::ClusterDrain).map(drop)
}

fn print_rows(
    config: &Config,
    request: &ControlRequest,
    as_json: bool,
    table: fn(&[Value]) -> Vec<String>,
) -> anyhow::Result<()> {
    let answer = request_text(&config.admin.socket, request)?;
    match as_json {
        true => print(answer.lines()),
        false => print(table(&rows(&answer)?)),
    }
}
