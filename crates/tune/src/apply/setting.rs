//! Changes a key of the configuration file. Comments, order and line ends stay as they are.

use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, Value};

use crate::setting_path::repeated_by;

/// A key of the configuration, and what it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigSetting {
    /// `key`, `section.key`, or `section[].key` in the section with the name `subject`. `{subject}` is the subject.
    pub(crate) key: String,
    /// The name of a table, transport or queue; empty if the key needs none.
    pub(crate) subject: String,
    /// Numbers and truth values are written as such, everything else as a string.
    pub(crate) value: String,
}

impl ConfigSetting {
    /// The text of the configuration with this setting.
    ///
    /// # Errors
    ///
    /// The text is no TOML, has line ends of both kinds, or has the section in a form that is not supported. The error
    /// is a sentence for the operator.
    pub(crate) fn add_to(&self, text: &str) -> Result<String, String> {
        let (mark, text) = text.strip_prefix('\u{feff}').map_or(("", text), |text| ("\u{feff}", text));
        let has_carriage_returns = text.contains("\r\n");
        let plain = text.replace("\r\n", "\n");
        if has_carriage_returns && plain.replace('\n', "\r\n") != text {
            return Err("lines end in CRLF and in LF: make them the same first".to_owned());
        }
        let mut document: DocumentMut = plain.parse().map_err(|error| format!("not TOML: {error}"))?;
        let parts: Vec<&str> = self.key.split('.').collect();
        self.set(document.as_table_mut(), &parts, 0)?;
        let edited = document.to_string();
        Ok(mark.to_owned() + &if has_carriage_returns { edited.replace('\n', "\r\n") } else { edited })
    }

    fn set(&self, table: &mut dyn TableLike, parts: &[&str], depth: usize) -> Result<(), String> {
        let Some((first, rest)) = parts.split_first() else { return Ok(()) };
        if rest.is_empty() {
            put(table, first, parse(&self.value));
            return Ok(());
        }
        let section = match first.strip_suffix("[]") {
            Some(list) => self.element(table, list)?,
            None => section(table, &first.replace("{subject}", &self.subject), depth, rest.len() > 1)?,
        };
        self.set(section, rest, depth + 1)
    }

    /// The section of a list that has the subject as its name.
    fn element<'a>(&self, table: &'a mut dyn TableLike, list: &str) -> Result<&'a mut dyn TableLike, String> {
        let missing = || format!("there is no [[{list}]] with the name {}: change it by hand", self.subject);
        let name = repeated_by(list).ok_or_else(missing)?;
        let tables = table.get_mut(list).and_then(Item::as_array_of_tables_mut).ok_or_else(missing)?;
        let is_named = |table: &&mut Table| table.get(name).and_then(Item::as_str) == Some(&*self.subject);
        let table = tables.iter_mut().find(is_named).ok_or_else(missing)?;
        Ok(table)
    }
}

/// The section with this name, which is made if it is missing: a table of its own, or below `transport.NAME` an inline
/// one.
fn section<'a>(
    table: &'a mut dyn TableLike,
    name: &str,
    depth: usize,
    has_sections: bool,
) -> Result<&'a mut dyn TableLike, String> {
    if table.get(name).is_none() {
        let made = match depth {
            0 | 1 => {
                let mut section = Table::new();
                // `[transport]` itself has no keys, so it needs no line.
                section.set_implicit(has_sections && depth == 0);
                Item::Table(section)
            }
            _ => Item::Value(Value::InlineTable(InlineTable::new())),
        };
        table.insert(name, made);
    }
    let section = table.get_mut(name).and_then(Item::as_table_like_mut);
    section.ok_or_else(|| format!("{name} is no section: change it by hand"))
}

/// Sets a key. The comment behind it stays.
fn put(table: &mut dyn TableLike, name: &str, mut value: Value) {
    match table.get_mut(name) {
        Some(item) => {
            if let Some(former) = item.as_value() {
                *value.decor_mut() = former.decor().clone();
            }
            *item = Item::Value(value);
        }
        None => _ = table.insert(name, Item::Value(value)),
    }
}

fn parse(text: &str) -> Value {
    match (text.parse::<i64>(), text.parse::<bool>()) {
        (Ok(number), _) => Value::from(number),
        (_, Ok(truth)) => Value::from(truth),
        _ => Value::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str, key: &str, subject: &str, value: &str) -> String {
        let setting = ConfigSetting { key: key.into(), subject: subject.into(), value: value.into() };
        setting.add_to(text).unwrap()
    }

    #[test]
    fn comments_and_order_stay() {
        let text = "# head\nthreads = 8   # too many\n\n[limits] # these\n# why\nsessions = 20\n# end\n";
        let edited = set(text, "threads", "", "0");
        assert_eq!(edited, text.replace("threads = 8", "threads = 0"));
        assert_eq!(set(text, "limits.sessions", "", "100"), text.replace("= 20", "= 100"));
    }

    #[test]
    fn what_is_missing_is_added_where_it_belongs() {
        let text = "data_dir = \"/d\"\n\n# listeners\n[[listener]]\nprotocol = \"smtp\"\n";
        assert_eq!(set(text, "threads", "", "0"), text.replace("/d\"\n", "/d\"\nthreads = 0\n"));
        assert_eq!(set(text, "spool.durability", "", "commit"), format!("{text}\n[spool]\ndurability = \"commit\"\n"));
        let concurrency = set(text, "transport.{subject}.concurrency.start", "maildir", "100");
        assert_eq!(concurrency, format!("{text}\n[transport.maildir]\nconcurrency = {{ start = 100 }}\n"));
    }

    #[test]
    fn every_form_of_a_section_is_found() {
        let inline = "limits = { sessions = 20, message = \"1MiB\" } # both\n";
        assert_eq!(set(inline, "limits.sessions", "", "100"), inline.replace("20", "100"));
        assert_eq!(set("limits.sessions = 20\n", "limits.sessions", "", "100"), "limits.sessions = 100\n");
        let transport = "[transport.maildir]\nconcurrency = { start = 1, most = 5 }\n";
        let edited = set(transport, "transport.{subject}.concurrency.start", "maildir", "100");
        assert_eq!(edited, transport.replace("start = 1,", "start = 100,"));
    }

    #[test]
    fn a_section_of_a_list_is_found_by_its_name() {
        let text = "[[table]]\nname = \"a.b\"\nbatch = 1\n[[table]]\nname = \"c\"\n";
        assert_eq!(set(text, "table[].batch", "a.b", "64"), text.replace("batch = 1", "batch = 64"));
        assert_eq!(set(text, "table[].batch", "c", "64"), format!("{text}batch = 64\n"));
        let missing = ConfigSetting { key: "table[].batch".into(), subject: "d".into(), value: "1".into() };
        assert!(missing.add_to(text).unwrap_err().contains("no [[table]] with the name d"));
    }

    #[test]
    fn line_ends_stay_and_mixed_ones_are_refused() {
        let text = "threads = 8\r\n# end\r\n";
        assert_eq!(set(text, "threads", "", "0"), "threads = 0\r\n# end\r\n");
        let marked = "\u{feff}threads = 8\n";
        assert_eq!(set(marked, "threads", "", "0"), "\u{feff}threads = 0\n");
        let setting = ConfigSetting { key: "threads".into(), subject: String::new(), value: "0".into() };
        assert!(setting.add_to("threads = 8\r\n# end\n").unwrap_err().contains("CRLF"));
        assert!(setting.add_to("threads = ").is_err());
        assert!(setting.add_to("# no line end").unwrap().contains("threads = 0\n"));
    }
}
