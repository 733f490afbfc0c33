//! The rule that two shapes violate.

use crate::shape::Shape;

/// The rule for the two shapes of [`KernelError::ShapeMismatch`](super::KernelError::ShapeMismatch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeRule {
    /// The shapes must be equal.
    Same,
    /// The shapes must broadcast: aligned at the last axis, two sizes are equal, or one of them is 1.
    Broadcast,
    /// The shapes must have a matrix product: the last axis of the first and the second-last axis of the second have
    /// equal sizes, and the axes before them broadcast.
    Product,
    /// Another rule, as a clause.
    Other(&'static str),
}

impl ShapeRule {
    /// Says what would fit.
    #[must_use]
    pub fn explain(self, lhs: &Shape, rhs: &Shape) -> String {
        let aligned = || lhs.dims().iter().rev().zip(rhs.dims().iter().rev()).zip(1..);
        match self {
            Self::Same => "they must be equal".to_owned(),
            Self::Broadcast => {
                let broadcasts = |(left, right): (usize, usize)| left == right || left == 1 || right == 1;
                match aligned().find(|&((&left, &right), _)| !broadcasts((left, right))) {
                    Some(((left, right), back)) => {
                        format!(
                            "axis -{back} has sizes {left} and {right}, which must be equal, or one of them 1"
                        )
                    }
                    None => "sizes must be equal or 1".to_owned(),
                }
            }
            Self::Product => match (lhs.dims(), rhs.dims()) {
                ([.., columns], [rows] | [.., rows, _]) if columns != rows => {
                    format!("the inner sizes {columns} and {rows} must be equal")
                }
                _ => "the axes before the last two must broadcast".to_owned(),
            },
            Self::Other(rule) => rule.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(rule: ShapeRule, lhs: &[usize], rhs: &[usize]) -> String {
        rule.explain(&Shape::new(lhs).unwrap(), &Shape::new(rhs).unwrap())
    }

    #[test]
    fn broadcasts_name_the_last_axis_that_differs() {
        let told = explain(ShapeRule::Broadcast, &[5, 2, 3], &[4, 3]);
        assert_eq!(told, "axis -2 has sizes 2 and 4, which must be equal, or one of them 1");
    }

    #[test]
    fn products_name_the_inner_sizes_or_the_leading_axes() {
        let inner = "the inner sizes 3 and 4 must be equal";
        assert_eq!(explain(ShapeRule::Product, &[2, 3], &[4, 5]), inner);
        assert_eq!(explain(ShapeRule::Product, &[2, 3], &[4]), inner);
        assert_eq!(explain(ShapeRule::Product, &[3], &[4]), inner);
        let leading = explain(ShapeRule::Product, &[2, 5, 3], &[4, 3, 5]);
        assert_eq!(leading, "the axes before the last two must broadcast");
    }
}
