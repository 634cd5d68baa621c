//! Gauges of the machine, sampled and never asked per message.
