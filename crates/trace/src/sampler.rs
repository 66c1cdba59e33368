//! Which traces are recorded: those whose caller records them; of the rest, a share.

/// A share of traces, chosen by their number, so that every process chooses the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share(f64);

impl Share {
    /// From 0 to 1; what lies outside is cut off.
    pub(crate) fn new(share: f64) -> Self {
        Self(if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) })
    }

    /// Whether a trace that begins here is recorded.
    pub(crate) fn takes(self, trace: u128) -> bool {
        if self.0 >= 1.0 {
            return true;
        }
        // The same rule as in the SDKs of other languages: the lower half of the number, 63 bits of it.
        let number = (trace as u64) >> 1;
        (number as f64) < self.0 * (1_u64 << 63) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Ids;

    #[test]
    fn a_share_takes_its_share() {
        let ids = Ids::new();
        for (share, least, most) in
            [(0.0, 0, 0), (0.25, 2000, 3000), (1.0, 10_000, 10_000), (7.0, 10_000, 10_000)]
        {
            let taken = (0..10_000).filter(|_| Share::new(share).takes(ids.next_trace())).count();
            assert!((least..=most).contains(&taken), "{share}: {taken}");
        }
        assert!(!Share::new(f64::NAN).takes(1));
    }
}
