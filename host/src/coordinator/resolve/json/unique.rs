//! JSON whose objects have each key once.

use crate::text::shown;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// Keys that are told; more have one reason.
const TOLD_MAX: usize = 16;

/// Keys that an object has twice, as paths: `cluster.worker`.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    paths: Vec<String>,
    more: usize,
}

impl Duplicates {
    /// The keys in words; none where each stands once.
    pub(super) fn text(&self) -> Option<String> {
        let paths = self.paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ");
        match self.more {
            0 if self.paths.is_empty() => None,
            0 => Some(paths),
            more => Some(format!("{paths} and {more} more")),
        }
    }

    fn note(&mut self, path: Option<&Place<'_>>, key: &str) {
        if self.paths.len() == TOLD_MAX {
            self.more += 1;
        } else {
            self.paths.push(Place { parent: path, key }.to_string());
        }
    }
}

/// Reads a value as `serde_json` does, where the last of several equal keys counts; and notes them.
///
/// # Errors
/// The syntax is wrong.
pub(super) fn parse(text: &str) -> serde_json::Result<(Value, Duplicates)> {
    let mut duplicates = Duplicates::default();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Seed { place: None, duplicates: &mut duplicates }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((value, duplicates))
}

/// Where in the text a value stands.
struct Place<'a> {
    parent: Option<&'a Place<'a>>,
    key: &'a str,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}.")?;
        }
        f.write_str(&shown(self.key))
    }
}

struct Seed<'a> {
    place: Option<&'a Place<'a>>,
    duplicates: &'a mut Duplicates,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        let Seed { place, duplicates } = self;
        while let Some(value) = elements.next_element_seed(Seed { place, duplicates: &mut *duplicates })? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        let Seed { place, duplicates } = self;
        while let Some(key) = entries.next_key::<String>()? {
            let here = Place { parent: place, key: &key };
            let value = entries.next_value_seed(Seed { place: Some(&here), duplicates: &mut *duplicates })?;
            if values.contains_key(&key) {
                duplicates.note(place, &key);
            }
            values.insert(key, value);
        }
        Ok(values.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_serde_json() {
        for text in [
            "null",
            "[1, -2, 3.5, 18446744073709551615, 1e400, true, \"a\\u00e4\", {}, []]",
            r#"{"b":{"a":[{"c":null}]},"a":1}"#,
            "{'a':1}",
            "[1,]",
            "",
            "{} {}",
        ] {
            let expected = serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
            let read = parse(text).map(|(value, duplicates)| {
                assert_eq!(duplicates.text(), None, "{text}");
                value
            });
            assert_eq!(read.map_err(|error| error.to_string()), expected, "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(parse(&deep).is_err(), "depth is bounded");
    }

    #[test]
    fn keys_that_stand_twice_are_named_by_their_place() {
        for (text, keys) in [
            (r#"{"a":1,"a":1}"#, "`a`"),
            (r#"{"cluster":{"worker":[],"ps":[],"worker":[]},"task":[{"x":1,"x":2}]}"#, "`cluster.worker`, `task.x`"),
            (r#"{"a":{"a":1},"b":1,"\u0062":2}"#, "`b`"),
        ] {
            assert_eq!(parse(text).expect("it is JSON").1.text().as_deref(), Some(keys));
        }
        let many = format!("{{{}\"k\":1}}", "\"k\":1,".repeat(1000));
        let text = parse(&many).expect("it is JSON").1.text().expect("it stands 1001 times");
        assert!(text.ends_with(" and 984 more"), "{text}");
    }
}
