//! Shows redirects for people.

use crate::columns::{Align, ColumnTable};
use crate::redirects::{Redirect, RedirectedName};

/// A table of the redirects in force.
pub fn table(redirects: &[Redirect]) -> Vec<String> {
    let columns =
        [("MAIL FOR", Align::Left), ("NAME", Align::Left), ("GOES TO", Align::Left), ("TRANSPORT", Align::Left)];
    let mut table = ColumnTable::new(&columns);
    for redirect in redirects {
        let (kind, name) = match &redirect.from {
            RedirectedName::NextHop(name) => ("next hop", name),
            RedirectedName::Destination(name) => ("destination", name),
        };
        let transport = redirect.transport.clone().unwrap_or_else(|| "smtp".to_owned());
        table.row(vec![kind.to_owned(), name.clone(), redirect.to.clone(), transport]);
    }
    table.lines().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_a_table() {
        let redirects = [
            (RedirectedName::NextHop("smtp:mx.a.example".into()), "[192.0.2.1]:2525", None),
            (RedirectedName::Destination("b.example".into()), "mx:c.example", Some("lists".to_owned())),
        ];
        let redirects = redirects.map(|(from, to, transport)| Redirect { from, to: to.to_owned(), transport });
        insta::assert_snapshot!("redirects_table", table(&redirects).join("\n"));
    }
}
