//! Verified tokens by digest: bounded, read without a lock.

use crate::{Principal, key::Digest};
use arc_swap::ArcSwap;
use std::{collections::HashMap, sync::Arc};

const SHARDS: usize = 64;
/// A full shard is copied for each insertion, so it is small.
const PER_SHARD: usize = 256;

type Shard = HashMap<Digest, Arc<Principal>>;

pub(crate) struct TokenCache {
    shards: Vec<ArcSwap<Shard>>,
}

impl TokenCache {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| ArcSwap::default()).collect() }
    }

    fn shard(&self, digest: &Digest) -> Option<&ArcSwap<Shard>> {
        self.shards.get(usize::from(*digest.first()?) % SHARDS)
    }

    pub(crate) fn get(&self, digest: &Digest) -> Option<Arc<Principal>> {
        self.shard(digest)?.load().get(digest).cloned()
    }

    /// A full shard loses the tokens that have expired; if there are none, half of the others.
    pub(crate) fn insert(&self, digest: Digest, principal: &Arc<Principal>, now: u64) {
        let Some(shard) = self.shard(&digest) else { return };
        shard.rcu(|current| {
            let mut next = Shard::clone(current);
            if next.len() >= PER_SHARD {
                next.retain(|_, principal| !principal.is_expired(now));
            }
            if next.len() >= PER_SHARD {
                let mut kept = 0;
                next.retain(|_, _| {
                    kept += 1;
                    kept <= PER_SHARD / 2
                });
            }
            next.insert(digest, Arc::clone(principal));
            next
        });
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.load().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::sha256;

    #[test]
    fn cache_is_bounded_and_prefers_expired_entries() {
        let cache = TokenCache::new();
        let lasting = Arc::new(Principal::for_test(Some(2_000)));
        let short = Arc::new(Principal::for_test(Some(10)));
        let digest = |n: usize| sha256(&n.to_le_bytes());
        for n in 0..10_000 {
            cache.insert(digest(n), if n % 2 == 0 { &lasting } else { &short }, 1);
        }
        let filled = cache.len();
        assert!(filled > 9_000, "{filled}");
        for n in 10_000..40_000 {
            cache.insert(digest(n), &lasting, 100);
        }
        assert!(cache.len() <= SHARDS * PER_SHARD);
        assert!(cache.get(&digest(39_999)).is_some());
        assert!(cache.get(&digest(40_000)).is_none());
    }
}
