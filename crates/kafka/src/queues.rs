//! Records of one key run one after the other, in the order of their offsets; records of different keys side by side.

use bytes::Bytes;
use std::collections::{HashMap, VecDeque};

/// The keys of one partition with a record in flight, and the records that wait for it.
#[derive(Debug)]
pub struct KeyQueues<T> {
    waiting: HashMap<Bytes, VecDeque<T>>,
    len: usize,
}

impl<T> Default for KeyQueues<T> {
    fn default() -> Self {
        Self { waiting: HashMap::new(), len: 0 }
    }
}

impl<T> KeyQueues<T> {
    /// Returns the record if it can start now. Records without a key have no order.
    pub fn push(&mut self, key: Option<&Bytes>, record: T) -> Option<T> {
        let Some(key) = key else { return Some(record) };
        if let Some(queue) = self.waiting.get_mut(key) {
            queue.push_back(record);
            self.len += 1;
            return None;
        }
        self.waiting.insert(key.clone(), VecDeque::new());
        Some(record)
    }

    /// The record of this key in flight has ended: returns the next one.
    pub fn finish(&mut self, key: Option<&Bytes>) -> Option<T> {
        let key = key?;
        let next = self.waiting.get_mut(key)?.pop_front();
        if next.is_some() {
            self.len -= 1;
        } else {
            self.waiting.remove(key);
        }
        next
    }

    /// Records that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes the records that wait and for which the condition holds.
    pub fn remove(&mut self, mut condition: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for queue in self.waiting.values_mut() {
            let (matching, kept) =
                std::mem::take(queue).into_iter().partition::<VecDeque<T>, _>(&mut condition);
            removed.extend(matching);
            *queue = kept;
        }
        self.len -= removed.len();
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_of_each_key_is_kept(
            keys in prop::collection::vec(prop::option::of(0u8..4), 1..60),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let key_of = |key: Option<u8>| key.map(|key| Bytes::copy_from_slice(&[key]));
            let mut queues = KeyQueues::default();
            let (mut running, mut ended) = (Vec::new(), Vec::new());
            let mut unread = keys.iter().copied().enumerate();
            for pick in picks {
                if pick.index(2) == 0 {
                    if let Some((number, key)) = unread.next() {
                        running.extend(queues.push(key_of(key).as_ref(), (number, key)));
                    }
                } else if !running.is_empty() {
                    let (number, key): (usize, Option<u8>) = running.swap_remove(pick.index(running.len()));
                    ended.push((number, key));
                    running.extend(queues.finish(key_of(key).as_ref()));
                }
                for key in (0..4).map(Some) {
                    prop_assert!(running.iter().filter(|(_, k)| *k == key).count() <= 1);
                }
            }
            while let Some((number, key)) = running.pop() {
                ended.push((number, key));
                running.extend(queues.finish(key_of(key).as_ref()));
            }
            prop_assert!(queues.is_empty() && queues.waiting.is_empty());
            for key in (0..4).map(Some) {
                let numbers: Vec<usize> = ended.iter().filter(|(_, k)| *k == key).map(|(n, _)| *n).collect();
                prop_assert!(numbers.is_sorted(), "{numbers:?}");
            }
            prop_assert_eq!(ended.len(), keys.len() - unread.count());
        }
    }

    #[test]
    fn waiting_records_are_removed_by_condition() {
        let key = Bytes::from_static(b"k");
        let mut queues = KeyQueues::default();
        assert_eq!(queues.push(Some(&key), 1), Some(1));
        for number in 2..6 {
            assert_eq!(queues.push(Some(&key), number), None);
        }
        assert_eq!(queues.remove(|number| number % 2 == 1), [3, 5]);
        assert_eq!(queues.len(), 2);
        assert_eq!([(); 3].map(|()| queues.finish(Some(&key))), [Some(2), Some(4), None]);
    }
}
