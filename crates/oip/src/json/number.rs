//! Number parsing in one pass, with exact results.

/// A scanned number token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number<'a> {
    /// ASCII.
    pub(crate) text: &'a [u8],
    pub(crate) negative: bool,
    /// All digits as one integer; invalid on `overflow`.
    pub(crate) mantissa: u64,
    /// Power of ten.
    pub(crate) exponent: i32,
    /// The digits do not fit into the mantissa.
    pub(crate) overflow: bool,
}

const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

impl Number<'_> {
    /// The nearest `f64`; infinite if too large.
    pub(crate) fn to_f64(self) -> f64 {
        self.fast().unwrap_or_else(|| self.slow())
    }

    /// The nearest `f32`; infinite if too large.
    pub(crate) fn to_f32(self) -> f32 {
        if let Some(wide) = self.fast() {
            // Double rounding is wrong only if the f64 lies halfway between two f32s, and at the ends of the range.
            let between = wide.to_bits() & 0x1fff_ffff == 0x1000_0000;
            let magnitude = wide.abs();
            let ordinary = magnitude == 0.0 || (1e-30..=1e30).contains(&magnitude);
            if ordinary && !between {
                return wide as f32;
            }
        }
        self.text().parse().unwrap_or(f32::INFINITY)
    }

    /// Exact if mantissa and power are exact in `f64`: a single rounding.
    fn fast(self) -> Option<f64> {
        if self.overflow || self.mantissa > 1 << 53 {
            return None;
        }
        let mantissa = self.mantissa as f64;
        let power = *POWERS.get(usize::try_from(self.exponent.unsigned_abs()).ok()?)?;
        let magnitude = if self.exponent < 0 { mantissa / power } else { mantissa * power };
        Some(if self.negative { -magnitude } else { magnitude })
    }

    fn slow(self) -> f64 {
        self.text().parse().unwrap_or(f64::INFINITY)
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(self.text).unwrap_or_default()
    }

    /// `2.0` and `1e3` are integers, too.
    pub(crate) fn to_integer(self) -> Integer {
        if self.overflow {
            return Integer::OutOfRange;
        }
        let magnitude = match self.exponent {
            0 => Some(self.mantissa),
            _ if self.mantissa == 0 => Some(0),
            e if e > 0 => 10u64.checked_pow(e.unsigned_abs()).and_then(|p| self.mantissa.checked_mul(p)),
            e => match 10u64.checked_pow(e.unsigned_abs()) {
                Some(p) if self.mantissa.is_multiple_of(p) => Some(self.mantissa / p),
                _ => return Integer::Fraction,
            },
        };
        match magnitude {
            None => Integer::OutOfRange,
            Some(m) if self.negative => Integer::Is(-i128::from(m)),
            Some(m) => Integer::Is(i128::from(m)),
        }
    }
}

pub(crate) enum Integer {
    Is(i128),
    Fraction,
    OutOfRange,
}

#[cfg(test)]
mod tests {
    use crate::json::Cursor;
    use proptest::prelude::*;

    fn f64_of(text: &str) -> f64 {
        Cursor::new(text.as_bytes()).number().unwrap().to_f64()
    }
    fn f32_of(text: &str) -> f32 {
        Cursor::new(text.as_bytes()).number().unwrap().to_f32()
    }

    #[test]
    fn boundary_numbers_are_exact() {
        for text in [
            "0",
            "-0.0",
            "5.1",
            "0.1",
            "1e22",
            "1e23",
            "9007199254740993",
            "123456789012345678901234567890",
            "1.7976931348623157e308",
            "4.9e-324",
            "2.2250738585072011e-308",
            "16777217",
            "16777217.0",
            "1.00000017881393432617187499",
            "3.4028235e38",
            "1e-45",
            "7.0064923e-46",
            "8388609.5",
            "33554435",
            "0.000000000000000000000000000000000000011754943508",
        ] {
            assert_eq!(f64_of(text).to_bits(), text.parse::<f64>().unwrap().to_bits(), "{text}");
            assert_eq!(f32_of(text).to_bits(), text.parse::<f32>().unwrap().to_bits(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn decimals_parse_like_std(text in "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,20})?(e[+-]?[0-9]{1,2})?") {
            prop_assert_eq!(f64_of(&text).to_bits(), text.parse::<f64>().unwrap().to_bits());
            prop_assert_eq!(f32_of(&text).to_bits(), text.parse::<f32>().unwrap().to_bits());
        }

        #[test]
        fn floats_round_trip(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite());
            prop_assert_eq!(f32_of(&format!("{value:e}")).to_bits(), bits);
        }
    }
}
