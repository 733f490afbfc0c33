//! Layouts: the positions of a tensor's elements in its buffer. Shapes as arguments.

mod shapes;

pub use highwater_kernels::layout::Layout;
pub(crate) use highwater_kernels::layout::bytes_of;

pub use self::shapes::{AxisSize, IntoShape};
