//! The text format of LightGBM models: a header and one block of `key=value` lines per tree.

use std::collections::HashMap;
use std::str::FromStr;

use crate::error::ParseError;

/// One block of lines.
#[derive(Debug, Default)]
pub(super) struct Block<'a> {
    /// Where the block starts, counted from one.
    pub(super) line: usize,
    entries: HashMap<&'a str, (usize, &'a str)>,
}

/// A model file cut into blocks.
#[derive(Debug)]
pub(super) struct File<'a> {
    pub(super) header: Block<'a>,
    pub(super) trees: Vec<Block<'a>>,
}

impl<'a> File<'a> {
    pub(super) fn cut(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let text = std::str::from_utf8(bytes).map_err(|error| ParseError::Syntax {
            format: "LightGBM text",
            offset: error.valid_up_to(),
            message: "the file is not UTF-8 text".into(),
        })?;
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim_end()));
        if lines.next().is_none_or(|(_, line)| line != "tree") {
            return Err(ParseError::line(1, "a LightGBM text model starts with the line `tree`"));
        }
        let mut file = Self { header: Block { line: 1, ..Block::default() }, trees: Vec::new() };
        for (line, content) in lines {
            if content == "end of trees" {
                return Ok(file);
            }
            let (key, value) = content.split_once('=').unwrap_or((content, ""));
            if key == "Tree" {
                if value.parse() != Ok(file.trees.len()) {
                    let message = format!("expected `Tree={}`, found `{content:.40}`", file.trees.len());
                    return Err(ParseError::line(line, message));
                }
                file.trees.push(Block { line, ..Block::default() });
            } else if !key.is_empty() {
                let block = file.trees.last_mut().unwrap_or(&mut file.header);
                if block.entries.insert(key, (line, value)).is_some() {
                    return Err(ParseError::line(line, format!("`{key:.40}` appears twice in one block")));
                }
            }
        }
        Err(ParseError::line(text.lines().count(), "the file ends before `end of trees`: it is cut off"))
    }
}

impl<'a> Block<'a> {
    pub(super) fn find(&self, key: &str) -> Option<&'a str> {
        self.entries.get(key).map(|(_, value)| *value)
    }

    /// An error at the line of a key, or at the start of the block when the key is not there.
    pub(super) fn error(&self, key: &str, message: impl std::fmt::Display) -> ParseError {
        let line = self.entries.get(key).map_or(self.line, |(line, _)| *line);
        ParseError::line(line, format!("`{key}` {message}"))
    }

    /// One value that must be there.
    pub(super) fn one<T: FromStr>(&self, key: &str) -> Result<T, ParseError> {
        let value = self.find(key).ok_or_else(|| self.error(key, "is missing"))?;
        value.trim().parse().map_err(|_| self.error(key, format!("has the unusable value `{value:.40}`")))
    }

    /// One value, or another one when the key is not there.
    pub(super) fn one_or<T: FromStr>(&self, key: &str, default: T) -> Result<T, ParseError> {
        if self.entries.contains_key(key) { self.one(key) } else { Ok(default) }
    }

    /// Exactly `count` values; memory follows the text, not the count.
    pub(super) fn many<T: FromStr>(&self, key: &str, count: usize) -> Result<Vec<T>, ParseError> {
        let text = self.find(key).ok_or_else(|| self.error(key, "is missing"))?;
        let mut values = Vec::new();
        for word in text.split_ascii_whitespace() {
            let value =
                word.parse().map_err(|_| self.error(key, format!("has the unusable value `{word:.40}`")))?;
            values.push(value);
        }
        if values.len() == count {
            return Ok(values);
        }
        Err(self.error(key, format!("has {} values, but {count} are needed", values.len())))
    }
}
