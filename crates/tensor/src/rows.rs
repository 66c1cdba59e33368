//! Rows of tensors: the first dimension. Batches concatenate the rows of requests and split those of the response.

use crate::{Elements, Tensor};

macro_rules! each_type {
    ($with:ident) => {
        $with!(Bool, Uint8, Uint16, Uint32, Uint64, Int8, Int16, Int32, Int64, Fp16, Bf16, Fp32, Fp64, Bytes)
    };
}

impl Tensor {
    /// Whether the rows of both fit in one tensor: same name, type and shape, except for the number of rows.
    pub fn can_concat(&self, other: &Self) -> bool {
        self.name() == other.name()
            && self.datatype() == other.datatype()
            && self.shape().len() == other.shape().len()
            && !self.shape().is_empty()
            && self.shape().get(1..) == other.shape().get(1..)
    }

    /// The rows of all tensors, in order. `None` without tensors, or if they differ in more than their rows.
    pub fn concat<'a>(tensors: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let mut tensors = tensors.into_iter();
        let (name, mut shape, mut elements) = tensors.next()?.clone().into_parts();
        for tensor in tensors {
            *shape.first_mut()? += tensor.shape().first()?;
            append(&mut elements, tensor.elements())?;
        }
        Self::new(name, shape, elements).ok()
    }

    /// `None` if the tensor has fewer rows.
    pub fn rows(&self, from: usize, count: usize) -> Option<Self> {
        let width = self.shape().get(1..)?.iter().product::<usize>();
        let range = from.checked_mul(width)?..from.checked_add(count)?.checked_mul(width)?;
        macro_rules! arms {
            ($($kind:ident),*) => {
                match self.elements() {
                    $(Elements::$kind(v) => Elements::$kind(v.get(range)?.to_vec()),)*
                }
            };
        }
        let elements = each_type!(arms);
        let mut shape = self.shape().to_vec();
        *shape.first_mut()? = count;
        Self::new(self.name(), shape, elements).ok()
    }
}

fn append(to: &mut Elements, from: &Elements) -> Option<()> {
    macro_rules! arms {
        ($($kind:ident),*) => {
            match (to, from) {
                $((Elements::$kind(to), Elements::$kind(from)) => to.extend_from_slice(from),)*
                _ => return None,
            }
        };
    }
    each_type!(arms);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_concatenation_are_the_parts() {
        let part = |rows: usize, first: u8| {
            let elements = (0..rows * 2).map(|i| first + u8::try_from(i).unwrap()).collect();
            Tensor::new("x", [rows, 2], Elements::Uint8(elements)).unwrap()
        };
        let (a, b) = (part(1, 0), part(3, 10));
        let both = Tensor::concat([&a, &b]).unwrap();
        assert_eq!(both.shape(), [4, 2]);
        assert_eq!((both.rows(0, 1), both.rows(1, 3)), (Some(a.clone()), Some(b)));
        assert_eq!(both.rows(2, 3), None);
        assert_eq!(both.rows(usize::MAX, 2), None);
        let other = Tensor::new("x", [1, 2], Elements::Int8(vec![1, 2])).unwrap();
        assert!(!a.can_concat(&other) && Tensor::concat([&a, &other]).is_none());
        let wide = Tensor::new("x", [1, 3], Elements::Uint8(vec![1, 2, 3])).unwrap();
        assert!(!a.can_concat(&wide) && a.can_concat(&part(7, 0)));
        let scalar = Tensor::new("x", [], Elements::Uint8(vec![1])).unwrap();
        assert!(!scalar.can_concat(&scalar));
    }
}
