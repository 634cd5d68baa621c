//! The metrics of a server that is a node of a cluster.

use std::time::Duration;

use super::families::{MetricFamilies, MetricKind};
use crate::ClusterFigures;

pub(super) fn write_cluster(figures: &ClusterFigures, out: &mut MetricFamilies) {
    out.gauge("mailrace_cluster_connected", "Whether a NATS server is connected", u64::from(figures.connected));
    let help = "How often the connection to the NATS servers broke";
    out.counter("mailrace_cluster_disconnections_total", help, figures.disconnections);
    out.family("mailrace_cluster_traffic_bytes_total", "Bytes to and from the NATS servers", MetricKind::Counter);
    figures.traffic.iter().for_each(|(direction, bytes)| out.sample(&[("direction", direction)], bytes));
    let help = "How long the NATS servers took to store the last entry of this node";
    write_seconds("mailrace_cluster_round_trip_seconds", help, figures.round_trip, out);
    out.gauge("mailrace_cluster_nodes", "Nodes that are alive", figures.nodes);
    write_lanes(figures, out);
    out.gauge("mailrace_cluster_waiting_bytes", "Bytes that wait for their second copy", figures.waiting_bytes);
    let help = "Batches by whether they got their second copy, failed, or were accepted on the local disk alone";
    out.family("mailrace_cluster_batches_total", help, MetricKind::Counter);
    figures.batches.iter().for_each(|(result, count)| out.sample(&[("result", result)], count));
    let help = "Records that the NATS servers refused or did not answer for; most of them are sent again";
    out.counter("mailrace_cluster_publishes_failed_total", help, figures.publishes_failed);
    let help = "Departures to next hops with a rate, by whether all nodes share them or each has its part";
    out.family("mailrace_cluster_departures_total", help, MetricKind::Counter);
    figures.departures.iter().for_each(|(source, count)| out.sample(&[("source", source)], count));
    let help = "Connections that this node may have to next hops with shared `connections`, by whether all nodes share \
        them or each has its part";
    out.family("mailrace_cluster_slots_held", help, MetricKind::Gauge);
    figures.slots_held.iter().for_each(|(source, count)| out.sample(&[("source", source)], count));
    let help = "Connections that this node asked for and others held, each counted once for as long as it is missing";
    out.counter("mailrace_cluster_slots_refused_total", help, figures.slots_refused);
}

fn write_lanes(figures: &ClusterFigures, out: &mut MetricFamilies) {
    let help = "Lanes: own ones, those that were taken over, those without a second copy, and those of other nodes";
    out.family("mailrace_cluster_lanes", help, MetricKind::Gauge);
    figures.lanes.iter().for_each(|(role, count)| out.sample(&[("role", role)], count));
    let help = "Lanes of this node whose mail may not be delivered before the lease is renewed";
    out.gauge("mailrace_cluster_lanes_without_lease", help, figures.lanes_without_lease);
    let help = "How long the lease lasts in the lane where it is shortest";
    write_seconds("mailrace_cluster_lease_seconds", help, figures.lease_left_min, out);
    let help = "Bytes of the records that the streams of this node keep on each server";
    out.gauge("mailrace_cluster_stream_bytes", help, figures.stored_bytes);
    let help = "Messages that are live in the streams of this node";
    out.gauge("mailrace_cluster_stream_messages", help, figures.live_messages);
    out.counter("mailrace_cluster_takeovers_total", "Lanes that this node has taken over", figures.takeovers);
}

/// A gauge that has no sample while there is no value.
fn write_seconds(name: &'static str, help: &str, value: Option<Duration>, out: &mut MetricFamilies) {
    out.family(name, help, MetricKind::Gauge);
    value.iter().for_each(|value| out.sample(&[], value.as_secs_f64()));
}
