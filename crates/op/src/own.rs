//! Settings of a configuration that only one backend understands.
//!
//! Every backend knows the fields of a [`Config`](crate::Config). What else some kernels can be told is a [`Setting`]
//! of their own: a name and a whole number. Here such settings are read, kept, compared and printed without being
//! understood; the backend that has them says what they mean, and refuses those that it does not have ([`Own::check`]).

use std::fmt;

/// Settings that one configuration may have.
const MOST: usize = 8;
/// Bytes that a key may have.
const KEY_BYTES: usize = 12;
/// What every configuration has, for messages.
pub(crate) const COMMON: &str = "strategy, tile, depth, stages, epilogue and schedule";

/// A key, filled up with zeros; nothing but zeros where there is none.
type Key = [u8; KEY_BYTES];

/// A key in its fixed size, if it can be one: lowercase letters, digits, `-` and `_`.
const fn padded(key: &str) -> Option<Key> {
    let (bytes, mut padded, mut place) = (key.as_bytes(), [0; KEY_BYTES], 0);
    if bytes.is_empty() || bytes.len() > KEY_BYTES {
        return None;
    }
    while place < bytes.len() {
        if !matches!(bytes[place], b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') {
            return None;
        }
        padded[place] = bytes[place];
        place += 1;
    }
    Some(padded)
}

/// The text of a key.
fn text(key: &Key) -> &str {
    let length = key.iter().position(|byte| *byte == 0).unwrap_or(KEY_BYTES);
    std::str::from_utf8(&key[..length]).unwrap_or_default()
}

/// A setting that a backend has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    key: Key,
    default: u32,
}

impl Setting {
    /// The setting of this name, with the value that it has where a configuration does not mention it.
    ///
    /// # Panics
    ///
    /// If the name has more than twelve bytes, or others than lowercase letters, digits, `-` and `_`. Settings are
    /// constants, so that this happens when they are compiled.
    pub const fn new(key: &str, default: u32) -> Self {
        match padded(key) {
            Some(key) => Setting { key, default },
            None => panic!("a setting's key is 1 to 12 lowercase letters, digits, '-' or '_'"),
        }
    }

    /// Its name.
    pub fn key(&self) -> &str {
        text(&self.key)
    }

    /// Its value among these.
    pub fn value(&self, own: &Own) -> u32 {
        own.find(&self.key).unwrap_or(self.default)
    }
}

/// The settings that a configuration has beside the common ones. Those that are not mentioned have their defaults.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Own([(Key, u32); MOST]);

impl Own {
    /// No settings.
    pub const NONE: Own = Own([([0; KEY_BYTES], 0); MOST]);

    /// A backend's settings with these values; defaults are not mentioned.
    pub fn of<const N: usize>(values: [(Setting, u32); N]) -> Self {
        const { assert!(N <= MOST, "a configuration has room for eight settings") };
        let mut own = Own::NONE;
        for (place, (setting, value)) in own.0.iter_mut().zip(values) {
            *place = (setting.key, value);
        }
        own.without_defaults(&values.map(|(setting, _)| setting))
    }

    /// These settings with another one, in place of the one of the same key; or why there cannot be such a one.
    pub fn with(mut self, key: &str, value: u32) -> Result<Self, String> {
        let reason = || {
            format!(
                "a key is one of {COMMON}, or a backend's own: 1 to {KEY_BYTES} lowercase letters, digits, '-' or '_'"
            )
        };
        let key = padded(key).ok_or_else(reason)?;
        let place = |wanted: Key| self.0.iter().position(|(key, _)| *key == wanted);
        let free = || format!("a configuration has at most {MOST} settings of a backend's own");
        let place = place(key).or_else(|| place([0; KEY_BYTES])).ok_or_else(free)?;
        self.0[place] = (key, value);
        Ok(self.sorted())
    }

    /// All of the other settings, and those of these that they leave room for.
    pub fn overridden_by(self, other: Own) -> Self {
        let left = self.0.into_iter().filter(|(key, _)| other.find(key).is_none());
        left.fold(other, |own, (key, value)| own.with(text(&key), value).unwrap_or(own))
    }

    /// The same without those that have their defaults, so that configurations that mean the same are equal.
    pub fn without_defaults(mut self, known: &[Setting]) -> Self {
        for entry in &mut self.0 {
            if known.iter().any(|setting| (setting.key, setting.default) == *entry) {
                *entry = Default::default();
            }
        }
        self.sorted()
    }

    /// Refuses settings other than those that a backend knows, in its name.
    pub fn check(&self, backend: &str, known: &[Setting]) -> Result<(), String> {
        let Some((key, _)) = self.iter().find(|(key, _)| known.iter().all(|setting| setting.key() != *key)) else {
            return Ok(());
        };
        let names: Vec<&str> = known.iter().map(Setting::key).collect();
        let has = match &names[..] {
            [] => "none of its own".to_owned(),
            [one] => (*one).to_owned(),
            [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
        };
        Err(format!("{backend} has no setting {key}; it has {has} beside {COMMON}"))
    }

    /// The settings that are mentioned, in the order in which they are printed.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.0.iter().map(|(key, value)| (text(key), *value)).take_while(|(key, _)| !key.is_empty())
    }

    fn find(&self, key: &Key) -> Option<u32> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| *value)
    }

    /// In one order whatever the order in which they came, the last key first: so places without a setting come last.
    fn sorted(mut self) -> Self {
        self.0.sort_unstable_by(|one, other| other.cmp(one));
        self
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: Setting = Setting::new("width", 1);
    const LEAD: Setting = Setting::new("lead", 0);

    #[test]
    fn settings_in_any_order_are_the_same_and_a_later_value_replaces_an_earlier_one() {
        let one = Own::NONE.with("width", 2).unwrap().with("lead", 3).unwrap();
        let other = Own::NONE.with("lead", 7).unwrap().with("width", 2).unwrap().with("lead", 3).unwrap();
        assert_eq!((one, one), (other, Own::of([(LEAD, 3), (WIDTH, 2)])));
        assert_eq!(one.iter().collect::<Vec<_>>(), [("width", 2), ("lead", 3)]);
        assert_eq!([WIDTH.value(&one), LEAD.value(&one), LEAD.value(&Own::NONE)], [2, 3, 0]);
        assert_eq!(format!("{one:?}"), r#"{"width": 2, "lead": 3}"#);
    }

    #[test]
    fn a_default_is_as_good_as_nothing_to_the_backend_that_has_it() {
        assert_eq!(Own::of([(WIDTH, 1), (LEAD, 0)]), Own::NONE);
        let plain = Own::NONE.with("width", 1).unwrap();
        assert_eq!(plain.without_defaults(&[WIDTH, LEAD]), Own::NONE);
        assert_eq!(plain.without_defaults(&[LEAD]), plain);
        assert_eq!(Own::of([(WIDTH, 2)]).overridden_by(plain).without_defaults(&[WIDTH]), Own::NONE);
    }

    #[test]
    fn a_backend_refuses_what_it_does_not_have_and_says_what_it_has() {
        let own = Own::NONE.with("colour", 1).unwrap();
        assert_eq!(own.check("x", &[Setting::new("colour", 0)]), Ok(()));
        for (known, has) in [
            (&[][..], "x has no setting colour; it has none of its own beside strategy, tile,"),
            (&[WIDTH], "x has no setting colour; it has width beside"),
            (&[WIDTH, LEAD], "x has no setting colour; it has width and lead beside"),
        ] {
            let reason = own.check("x", known).unwrap_err();
            assert!(reason.starts_with(has), "{reason}");
        }
    }

    #[test]
    fn keys_that_are_none_and_more_settings_than_there_is_room_for_are_refused() {
        for key in ["", "thirteenbytes", "Width", "wi dth", "größe"] {
            assert!(Own::NONE.with(key, 1).unwrap_err().contains("strategy, tile"), "{key}");
        }
        let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let full = keys.iter().fold(Own::NONE, |own, key| own.with(key, 1).unwrap());
        assert!(full.with("i", 1).unwrap_err().contains("at most 8"));
        assert_eq!(full.with("a", 2).unwrap().iter().last(), Some(("a", 2)));
    }
}
