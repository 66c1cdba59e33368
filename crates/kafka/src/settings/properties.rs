//! Maps of client properties: known ones are read, the others reported.

use super::{IntOrString, SettingsError};
use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

pub(super) struct Properties {
    section: &'static str,
    values: BTreeMap<String, IntOrString>,
}

impl Properties {
    pub(super) const fn new(section: &'static str, values: BTreeMap<String, IntOrString>) -> Self {
        Self { section, values }
    }

    fn take(&mut self, key: &str) -> Option<String> {
        self.values.remove(key).map(String::from)
    }

    fn invalid(&self, key: &str, value: String, expected: &'static str) -> SettingsError {
        SettingsError::Value { key: format!("{}.{key}", self.section), value, expected }
    }

    #[allow(clippy::unnecessary_wraps, reason = "as the other properties")]
    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, SettingsError> {
        Ok(self.take(key))
    }

    pub(super) fn number(
        &mut self,
        key: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, SettingsError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.trim().parse::<i64>() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            Ok(_) => Err(self.invalid(key, value, "the number is out of range")),
            Err(_) => Err(self.invalid(key, value, "a whole number is expected")),
        }
    }

    pub(super) fn millis(&mut self, key: &str, min: i64) -> Result<Option<Duration>, SettingsError> {
        let millis = self.number(key, min..=86_400_000)?;
        Ok(millis.map(|millis| Duration::from_millis(millis.unsigned_abs())))
    }

    pub(super) fn choice(&mut self, key: &str, choices: &[&str]) -> Result<Option<String>, SettingsError> {
        let Some(value) = self.take(key) else { return Ok(None) };
        if choices.contains(&value.as_str()) {
            return Ok(Some(value));
        }
        Err(self.invalid(key, value, "the value is unknown; see docs/kafka.md"))
    }

    pub(super) fn ignore(&mut self, keys: &[&str]) {
        self.values.retain(|key, _| !keys.contains(&key.as_str()));
    }

    /// A warning for each property that was not read.
    pub(super) fn unused(self) -> impl Iterator<Item = String> {
        let section = self.section;
        self.values.into_keys().map(move |key| format!("{section}.{key} has no effect"))
    }
}
