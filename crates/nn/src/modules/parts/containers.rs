//! Containers of parts, and plain data in modules.

use std::marker::PhantomData;

use highwater_tensor::{
    Activation, AttentionOptions, Conv1dOptions, Conv2dOptions, DType, Device, Interpolation, OutputSize,
    Padding, Pool1dOptions, Pool2dOptions, Shape,
};

use super::{ModulePart, PartVisitor};

impl<P: ModulePart> ModulePart for Option<P> {
    const HAS_PATH: bool = P::HAS_PATH;

    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        self.iter().for_each(|part| part.visit_part(visitor));
    }
}

impl<P: ModulePart> ModulePart for Vec<P> {
    const HAS_PATH: bool = P::HAS_PATH;

    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        visitor.members(self);
    }
}

impl<P: ModulePart, const N: usize> ModulePart for [P; N] {
    const HAS_PATH: bool = P::HAS_PATH;

    fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
        visitor.members(self);
    }
}

macro_rules! tuple {
    ($($part:ident $index:tt),+) => {
        impl<$($part: ModulePart),+> ModulePart for ($($part,)+) {
            const HAS_PATH: bool = false $(|| $part::HAS_PATH)+;

            fn visit_part(&self, visitor: &mut PartVisitor<'_>) {
                $(visitor.part(stringify!($index), &self.$index);)+
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

/// Types without parts, so that a derive needs no `#[module(skip)]` for them.
macro_rules! plain {
    ($($plain:ty),+ $(,)?) => {
        $(impl ModulePart for $plain {
            const HAS_PATH: bool = false;

            fn visit_part(&self, _: &mut PartVisitor<'_>) {}
        })+
    };
}

plain!(bool, char, f32, f64, i32, i64, isize, u8, u32, u64, usize, String, &'static str);
plain!(Activation, AttentionOptions, Conv1dOptions, Conv2dOptions, DType, Device, Interpolation, OutputSize);
plain!(Padding, Pool1dOptions, Pool2dOptions, Shape);

impl<T: ?Sized> ModulePart for PhantomData<T> {
    const HAS_PATH: bool = false;

    fn visit_part(&self, _: &mut PartVisitor<'_>) {}
}
