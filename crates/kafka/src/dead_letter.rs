//! Records of the errors topic. The value is the text of an error, as Seldon writes it.
//!
//! A dead letter is the error of a record that has no answer. It carries this record, so that it can be written again: the
//! key is the same, and headers have its position, its headers and its value.

use crate::{
    headers::{self, Header, Headers, RunHeaders},
    record::{Consumed, Produced},
    topics::Topics,
};
use bytes::Bytes;

/// Bytes of an error's text.
const MAX_ERROR: usize = 4 << 10;
/// Bytes of the reason why a record is not carried.
const MAX_REASON: usize = 512;
/// Positions of a join's records; further ones are left out.
const MAX_SOURCES: usize = 16;

/// The error of one record.
#[derive(Clone, Debug)]
pub struct Failure<'a> {
    pub topics: &'a Topics,
    pub run: RunHeaders<'a>,
    /// The step that failed, or the pipeline.
    pub step: &'a str,
    pub message: &'a str,
}

impl Failure<'_> {
    /// The dead letter of a record.
    pub fn dead_letter(&self, record: &Consumed) -> Produced {
        let mut more = vec![source(record.position())];
        let carried = record.headers.iter();
        more.extend(
            carried.map(|(name, value)| (format!("{}{name}", headers::HEADER_PREFIX).into(), value.clone())),
        );
        more.push((headers::VALUE.into(), record.value.clone()));
        self.error(record.key.clone(), more)
    }

    /// The error of a step on which the answer does not depend: the record is answered.
    pub fn of_answered(&self, record: &Consumed) -> Produced {
        let answered = (headers::ANSWERED.into(), Bytes::from_static(b"true"));
        self.error(record.key.clone(), vec![source(record.position()), answered])
    }

    /// The dead letter of several records, by their positions: they are too large together.
    pub fn of_join(&self, key: Option<Bytes>, positions: impl Iterator<Item = String>) -> Produced {
        let mut more: Headers = positions.take(MAX_SOURCES).map(source).collect();
        more.push(omitted("the joined records are only in their topics"));
        self.error(key, more)
    }

    fn error(&self, key: Option<Bytes>, more: Headers) -> Produced {
        let mut headers = self.run.with_routes([]);
        headers.push((headers::ERRORS.into(), Bytes::copy_from_slice(self.step.as_bytes())));
        headers.extend(more);
        let value = Bytes::copy_from_slice(cut(self.message, MAX_ERROR).as_bytes());
        let partition = crate::key::reply_partition(key.as_ref());
        Produced { topic: self.topics.errors(), partition, key, value, headers }
    }
}

fn source(position: String) -> Header {
    (headers::SOURCE.into(), position.into())
}

fn omitted(reason: &str) -> Header {
    (headers::OMITTED.into(), Bytes::copy_from_slice(cut(reason, MAX_REASON).as_bytes()))
}

fn cut(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or_default()
}

fn is_carried(name: &str) -> bool {
    name == headers::VALUE || name.starts_with(headers::HEADER_PREFIX)
}

/// The dead letter without its record, for a topic that does not accept both; a header has the reason.
#[must_use]
pub fn without_record(mut letter: Produced, reason: &str) -> Produced {
    letter.headers.retain(|(name, _)| !is_carried(name));
    letter.headers.push(omitted(&format!("the record is only in its topic: {reason}")));
    letter
}

/// The record that a dead letter carries, for the partition from which it was read. `None` for other records of the errors
/// topic: those of answered records, and dead letters whose record did not fit.
pub fn original(letter: &Consumed) -> Option<Produced> {
    let (_, value) = letter.headers.iter().find(|(name, _)| name == headers::VALUE)?;
    let mut position = headers::get(&letter.headers, headers::SOURCE)?.rsplitn(3, '/');
    let (_offset, partition, topic) = (position.next()?, position.next()?, position.next()?);
    let carried = letter.headers.iter();
    let own = carried.filter_map(|(name, value)| {
        Some((name.strip_prefix(headers::HEADER_PREFIX)?.to_owned().into(), value.clone()))
    });
    Some(Produced {
        topic: topic.to_owned(),
        partition: partition.parse().ok(),
        key: letter.key.clone(),
        value: value.clone(),
        headers: own.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use proptest::prelude::*;

    fn consumed(key: Option<Bytes>, value: Bytes, headers: Headers) -> Consumed {
        let topic = "seldon.default.pipeline.p.inputs".into();
        Consumed { topic, partition: 3, offset: 41, key, value, headers }
    }

    fn with_failure<T>(message: &str, of: impl FnOnce(&Failure<'_>) -> T) -> T {
        let topics = Topics::new("", "").unwrap();
        let forwarded = HeaderMap::from_iter([(
            http::HeaderName::from_static("x-tenant"),
            http::HeaderValue::from_static("a"),
        )]);
        let run = RunHeaders { pipeline: "p", version: 2, request_id: "r", forwarded: &forwarded };
        of(&Failure { topics: &topics, run, step: "s", message })
    }

    /// As it is read.
    fn written(letter: Produced) -> Consumed {
        let Produced { topic, key, value, headers, .. } = letter;
        Consumed { topic: topic.into(), partition: 0, offset: 0, key, value, headers }
    }

    fn header<'a>(letter: &'a Produced, name: &str) -> &'a str {
        headers::get(&letter.headers, name).unwrap_or_default()
    }

    #[test]
    fn dead_letter_names_step_pipeline_and_position() {
        let record = consumed(Some("2.p.r".into()), "v".into(), Vec::new());
        let letter = with_failure("s : wrong", |failure| failure.dead_letter(&record));
        assert_eq!((letter.topic.as_str(), letter.partition), ("seldon.default.errors.errors", Some(2)));
        assert_eq!(letter.value, "s : wrong");
        assert_eq!(header(&letter, "seldon-pipeline-errors"), "s");
        assert_eq!(header(&letter, "pipeline"), "p");
        assert_eq!(header(&letter, "x-request-id"), "r");
        assert_eq!(header(&letter, "x-tenant"), "a");
        assert_eq!(header(&letter, "x-gantry-source"), "seldon.default.pipeline.p.inputs/3/41");
    }

    #[test]
    fn long_error_is_cut_at_a_character() {
        let record = consumed(None, Bytes::new(), Vec::new());
        let letter = with_failure(&"ü".repeat(MAX_ERROR), |failure| failure.dead_letter(&record));
        assert_eq!(letter.value, "ü".repeat(MAX_ERROR / 2));
        let odd = format!("a{}", "ü".repeat(MAX_ERROR));
        let letter = with_failure(&odd, |failure| failure.dead_letter(&record));
        assert_eq!(letter.value.len(), MAX_ERROR - 1);
    }

    #[test]
    fn letter_without_its_record_states_the_reason() {
        let record = consumed(Some("k".into()), "v".into(), vec![("x-a".into(), "1".into())]);
        let letter = with_failure("e", |failure| failure.dead_letter(&record));
        let reduced = without_record(letter.clone(), "too large");
        assert_eq!(header(&reduced, "x-gantry-omitted"), "the record is only in its topic: too large");
        assert_eq!((&reduced.key, &reduced.value), (&letter.key, &letter.value));
        assert_eq!(header(&reduced, "x-gantry-source"), header(&letter, "x-gantry-source"));
        assert!(!reduced.headers.iter().any(|(name, _)| is_carried(name)), "{reduced:?}");
        assert_eq!(original(&written(reduced)), None);
    }

    #[test]
    fn only_dead_letters_are_written_again() {
        let record = consumed(Some("k".into()), "v".into(), Vec::new());
        let answered = with_failure("e", |failure| failure.of_answered(&record));
        assert_eq!(header(&answered, "x-gantry-answered"), "true");
        assert_eq!(header(&answered, "x-gantry-source"), "seldon.default.pipeline.p.inputs/3/41");
        assert_eq!(original(&written(answered)), None);
        let positions = (0..40).map(|offset| format!("t/0/{offset}"));
        let joined = with_failure("e", |failure| failure.of_join(Some("k".into()), positions));
        let sources = joined.headers.iter().filter(|(name, _)| name == headers::SOURCE).count();
        assert_eq!(sources, MAX_SOURCES);
        assert_eq!(header(&joined, "x-gantry-omitted"), "the joined records are only in their topics");
        assert_eq!(original(&written(joined)), None);
        for position in ["", "t", "t/0", "a/b"] {
            let headers = [(headers::SOURCE, position), (headers::VALUE, "v")]
                .map(|(name, value)| (name.into(), Bytes::copy_from_slice(value.as_bytes())));
            assert_eq!(original(&consumed(None, Bytes::new(), headers.into())), None, "{position}");
        }
    }

    proptest! {
        /// Names and values of headers are any, also those that Gantry sets itself.
        #[test]
        fn record_is_written_again_as_it_was(
            key in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
            value in prop::collection::vec(any::<u8>(), 0..400),
            names in prop::collection::vec(
                prop_oneof![
                    any::<String>(),
                    prop::sample::select(vec![
                        headers::VALUE, headers::SOURCE, headers::OMITTED, headers::ANSWERED, headers::HEADER_PREFIX,
                        headers::PIPELINE, headers::REQUEST_ID, headers::TRACEPARENT,
                    ]).prop_map(str::to_owned),
                ],
                0..8,
            ),
            content in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let content = Bytes::from(content);
            let headers: Headers = names.into_iter().map(|name| (name.into(), content.clone())).collect();
            let record = consumed(key.map(Bytes::from), value.into(), headers);
            let letter = with_failure("e", |failure| {
                let forwarded = headers::forwarded(&record.headers);
                let run = RunHeaders { forwarded: &forwarded, ..failure.run.clone() };
                Failure { run, ..failure.clone() }.dead_letter(&record)
            });
            let again = original(&written(letter)).unwrap();
            prop_assert_eq!(&*again.topic, &*record.topic);
            prop_assert_eq!(again.partition, Some(record.partition));
            prop_assert_eq!((again.key, again.value, again.headers), (record.key, record.value, record.headers));
        }
    }
}
