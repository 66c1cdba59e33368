//! Input rows: a borrowed row-major matrix whose shape was checked once.

use crate::error::PredictError;

/// The values of a matrix, in the type the caller has them in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Values<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
}

/// A row-major matrix of features; its length is proven to be rows times features.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    values: Values<'a>,
    count: usize,
    features: usize,
}

impl<'a> Rows<'a> {
    /// Borrows single-precision values as `rows` rows of `features` features.
    pub fn f32(values: &'a [f32], rows: usize, features: usize) -> Result<Self, PredictError> {
        check_length(values.len(), rows, features)?;
        Ok(Self { values: Values::F32(values), count: rows, features })
    }

    /// Borrows double-precision values as `rows` rows of `features` features.
    pub fn f64(values: &'a [f64], rows: usize, features: usize) -> Result<Self, PredictError> {
        check_length(values.len(), rows, features)?;
        Ok(Self { values: Values::F64(values), count: rows, features })
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.count
    }

    /// How many features each row has.
    pub fn features(&self) -> usize {
        self.features
    }

    pub(crate) fn values(&self) -> Values<'a> {
        self.values
    }
}

fn check_length(values: usize, rows: usize, features: usize) -> Result<(), PredictError> {
    match rows.checked_mul(features) {
        Some(expected) if expected == values => Ok(()),
        product => {
            Err(PredictError::Length { rows, features, expected: product.unwrap_or(usize::MAX), values })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_mismatch_error_has_both_numbers() {
        let error = Rows::f32(&[0.0; 5], 2, 3).unwrap_err();
        assert_eq!(error.to_string(), "2 rows of 3 features need 6 values, but 5 were given");
        assert!(Rows::f64(&[], usize::MAX, 2).is_err());
        assert!(Rows::f64(&[], 0, 4).is_ok());
    }
}
