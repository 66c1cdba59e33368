//! Kubernetes quantities: `100Ki`, `1.5G`, `2e9`, `1024`.

/// Parses a quantity of bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    let number_end = text
        .char_indices()
        .find(|(i, c)| !(c.is_ascii_digit() || *c == '.' || (*c == '-' || *c == '+') && *i == 0))
        .map_or(text.len(), |(i, _)| i);
    let (number, suffix) = text.split_at(number_end);
    let scale: f64 = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        other => exponent(other).ok_or_else(|| {
            format!(
                "\"{}\" is not an amount: write it as 100Ki, 512Mi, 2Gi or a number of bytes",
                text.escape_debug()
            )
        })?,
    };
    let value: f64 = number.parse().map_err(|_| {
        format!(
            "\"{}\" is not an amount: write it as 100Ki, 512Mi, 2Gi or a number of bytes",
            text.escape_debug()
        )
    })?;
    let bytes = (value * scale).ceil();
    if bytes < 0.0 {
        return Err(format!("\"{text}\" is negative: memory is at least 0"));
    }
    if bytes >= u64::MAX as f64 {
        return Err(format!("\"{text}\" is larger than any memory: at most 15Ei"));
    }
    // Plain integers must not lose digits through the float.
    Ok(if suffix.is_empty() { number.parse().unwrap_or(bytes as u64) } else { bytes as u64 })
}

fn exponent(suffix: &str) -> Option<f64> {
    let digits = suffix.strip_prefix(['e', 'E'])?;
    let power: i32 = digits.parse().ok()?;
    (power.abs() <= 18).then(|| 10f64.powi(power))
}

#[cfg(test)]
mod tests {
    #[test]
    fn amounts() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("100Ki", 102_400),
            ("1.5Gi", 1_610_612_736),
            ("2G", 2_000_000_000),
            ("2e9", 2_000_000_000),
            ("500m", 1),
            ("+1Ki", 1024),
            ("-0", 0),
            ("9007199254740993", 9_007_199_254_740_993),
        ] {
            assert_eq!(super::bytes(text), Ok(bytes), "{text}");
        }
        for bad in ["", "abc", "1Gib", "1 Gi", "-1", "1e99", "99Ei", "1.2.3", "e3", "0x10"] {
            assert!(super::bytes(bad).is_err(), "{bad}");
        }
        assert!(super::bytes("-1Gi").is_err_and(|message| message.contains("negative")));
    }

    proptest::proptest! {
        #[test]
        fn any_text_gets_an_answer(text in ".{0,20}") {
            let _ = super::bytes(&text);
        }
    }
}
