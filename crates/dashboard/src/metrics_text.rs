//! Reads metrics in the text format of Prometheus: samples, and quantiles of histograms.

use std::collections::BTreeMap;

/// Cumulative counts by upper bound in microseconds; the last one is unbounded.
pub type Buckets = BTreeMap<u64, f64>;

/// A line of the text format with labels: name, labels and value.
pub fn sample(line: &str) -> Option<(&str, BTreeMap<&str, String>, f64)> {
    let (name, rest) = line.split_once('{').filter(|(name, _)| !name.starts_with('#'))?;
    let mut labels = BTreeMap::new();
    let mut rest = rest;
    while let Some((key, quoted)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next()?.1 {
                    'n' => '\n',
                    escaped => escaped,
                }),
                (_, plain) => value.push(plain),
            }
        };
        labels.insert(key.trim_start_matches(','), value);
        rest = quoted.get(end + 1..)?;
        if rest.starts_with('}') {
            break;
        }
    }
    let value = rest.strip_prefix('}')?.split_whitespace().next()?.parse().ok()?;
    Some((name, labels, value))
}

/// The key of a bucket with this value of the label `le`.
pub fn bound_micros(le: &str) -> u64 {
    match le.parse::<f64>() {
        Ok(bound) if bound.is_finite() => (bound * 1e6) as u64,
        _ => u64::MAX,
    }
}

/// Interpolated within its bucket; the largest bound for an unbounded one.
pub fn quantile_ms(buckets: &Buckets, quantile: f64) -> Option<f64> {
    let wanted = buckets.values().last().filter(|all| **all > 0.0)? * quantile;
    let (mut low, mut below) = (0.0, 0.0);
    for (bound, count) in buckets {
        if *count >= wanted {
            if *bound == u64::MAX {
                return Some(low);
            }
            let share = if *count > below { (wanted - below) / (count - below) } else { 1.0 };
            return Some(low + (*bound as f64 / 1e3 - low) * share);
        }
        (low, below) = (*bound as f64 / 1e3, *count);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_labels_and_a_value() {
        let (name, labels, value) = sample(r#"a_total{x="1",y="q\"}\\,\n"} 2.5 # {trace="1"} 1"#).unwrap();
        assert_eq!((name, value), ("a_total", 2.5));
        assert_eq!(labels, BTreeMap::from([("x", "1".to_owned()), ("y", "q\"}\\,\n".to_owned())]));
        for other in ["# HELP a_total b", "a_total 3", "a_total{x=\"1", "a_total{x=\"1\"} b", "{", "a{x=\"\\"]
        {
            assert!(sample(other).is_none(), "{other}");
        }
    }

    #[test]
    fn quantiles_are_interpolated() {
        let of = |buckets: &[(u64, f64)]| buckets.iter().copied().collect::<Buckets>();
        let buckets = of(&[(1000, 0.0), (2000, 50.0), (10_000, 100.0), (u64::MAX, 100.0)]);
        assert_eq!(quantile_ms(&buckets, 0.5), Some(2.0));
        assert_eq!(quantile_ms(&buckets, 0.25), Some(1.5));
        assert_eq!(quantile_ms(&buckets, 0.75), Some(6.0));
        assert_eq!(quantile_ms(&of(&[(1000, 0.0), (u64::MAX, 2.0)]), 0.5), Some(1.0));
        assert_eq!(quantile_ms(&of(&[(1000, 0.0), (u64::MAX, 0.0)]), 0.5), None);
        assert_eq!(quantile_ms(&of(&[]), 0.5), None);
        assert_eq!((bound_micros("0.0025"), bound_micros("+Inf")), (2500, u64::MAX));
    }
}
