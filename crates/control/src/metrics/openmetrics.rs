//! The OpenMetrics text format, from that of Prometheus: the two differ in the names of counters, whose
//! samples end in `_total` while their families do not, and in the last line.

/// The same metrics in the OpenMetrics format (version 1.0.0).
pub(crate) fn to_openmetrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for line in text.lines() {
        match family(line) {
            Some((before, name, after)) => {
                out.extend([before, name.strip_suffix("_total").unwrap_or(name), " ", after]);
            }
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out.push_str("# EOF\n");
    out
}

/// What a line says about a family: the keyword, the name of the family, and the rest.
fn family(line: &str) -> Option<(&str, &str, &str)> {
    let rest = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "))?;
    let (name, after) = rest.split_once(' ')?;
    Some((&line[..line.len() - rest.len()], name, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_of_counters_has_no_total_in_its_name() {
        let text = "# HELP a_total Count of a_total\n# TYPE a_total counter\na_total 1\n# HELP b Gauge\n# TYPE b gauge\n\
                    b{x=\"# TYPE c_total counter\"} 2\n";
        let expected = "# HELP a Count of a_total\n# TYPE a counter\na_total 1\n# HELP b Gauge\n# TYPE b gauge\n\
                        b{x=\"# TYPE c_total counter\"} 2\n# EOF\n";
        assert_eq!(to_openmetrics(text), expected);
    }
}
