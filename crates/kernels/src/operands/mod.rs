//! The operands of a kernel: which fields they are, how the kernel accesses them, and their names.
//!
//! Each kernel lists its operands with `operands!`. The check of operands, the upcast of 16-bit floats and the estimate
//! of traffic are loops over this list. The name of an operand is the path of its field, so names cannot differ from fields.

mod rules;

pub(crate) use self::rules::{CheckedOperand, Rules};
use crate::error::Result;
use crate::layout::Layout;
use crate::shape::DType;
use crate::storage::{Storage, View, ViewMut};

/// An operand of a kernel with its kind of access.
#[derive(Debug)]
pub enum Operand<'k, 'a> {
    /// An input in any layout.
    Read(&'k mut View<'a>),
    /// An input that must be contiguous.
    ReadContiguous(&'k mut View<'a>),
    /// An input in any layout of which the kernel reads this many elements.
    ReadPart(&'k mut View<'a>, usize),
    /// An output that the kernel overwrites. It must be contiguous from the start of its buffer.
    Write(&'k mut ViewMut<'a>),
    /// An output in any layout of which the kernel overwrites this many elements.
    WritePart(&'k mut ViewMut<'a>, usize),
    /// An operand that the kernel updates in place. It must be contiguous from the start of its buffer.
    Update(&'k mut ViewMut<'a>),
    /// Bytes for values that the kernel keeps only while it runs. They must be contiguous from the start of their buffer.
    Scratch(&'k mut ViewMut<'a>),
}

impl<'a> Operand<'_, 'a> {
    /// The buffer.
    #[inline(always)]
    #[must_use]
    pub fn storage(&self) -> &Storage {
        match self {
            Self::Read(view) | Self::ReadContiguous(view) | Self::ReadPart(view, _) => view.storage(),
            Self::Write(view) | Self::WritePart(view, _) | Self::Update(view) | Self::Scratch(view) => {
                view.storage()
            }
        }
    }

    /// The layout of the elements in the buffer.
    #[inline(always)]
    #[must_use]
    pub const fn layout(&self) -> &'a Layout {
        match self {
            Self::Read(view) | Self::ReadContiguous(view) | Self::ReadPart(view, _) => view.layout(),
            Self::Write(view) | Self::WritePart(view, _) | Self::Update(view) | Self::Scratch(view) => {
                view.layout()
            }
        }
    }

    /// The element type.
    #[inline(always)]
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.storage().dtype()
    }

    /// Whether the layout fits the kind of access.
    #[inline(always)]
    pub(crate) fn has_valid_layout(&self) -> bool {
        let layout = self.layout();
        match self {
            Self::Read(_) | Self::ReadPart(..) | Self::WritePart(..) => true,
            Self::ReadContiguous(_) => layout.is_contiguous(),
            Self::Write(_) | Self::Update(_) | Self::Scratch(_) => {
                layout.offset() == 0 && layout.is_contiguous()
            }
        }
    }
}

/// The largest number of operands of a kernel.
pub const MAX_OPERANDS: usize = 11;

/// A closure that receives the name and the access of each operand.
pub trait Visit<'k, 'a: 'k>: FnMut(&'static str, Operand<'k, 'a>) -> Result<()> {}

impl<'k, 'a: 'k, F: FnMut(&'static str, Operand<'k, 'a>) -> Result<()>> Visit<'k, 'a> for F {}

/// A field of a kernel that is an operand, or may be absent.
pub(crate) trait Field<'a> {
    /// [`View`] or [`ViewMut`].
    type View;
    /// A [`CheckedOperand`]; an option if the field is one.
    type Checked;

    /// The operand, if present.
    fn view_mut(&mut self) -> Option<&mut Self::View>;

    /// The operand under a name, for the rules of the kernel.
    fn checked(&self, name: &'static str) -> Self::Checked;
}

impl<'a> Field<'a> for View<'a> {
    type View = Self;
    type Checked = CheckedOperand<'a>;

    #[inline(always)]
    fn view_mut(&mut self) -> Option<&mut Self> {
        Some(self)
    }

    fn checked(&self, name: &'static str) -> CheckedOperand<'a> {
        CheckedOperand::new(name, self.dtype(), self.layout())
    }
}

impl<'a> Field<'a> for ViewMut<'a> {
    type View = Self;
    type Checked = CheckedOperand<'a>;

    #[inline(always)]
    fn view_mut(&mut self) -> Option<&mut Self> {
        Some(self)
    }

    fn checked(&self, name: &'static str) -> CheckedOperand<'a> {
        CheckedOperand::new(name, self.dtype(), self.layout())
    }
}

impl<'a> Field<'a> for Option<View<'a>> {
    type View = View<'a>;
    type Checked = Option<CheckedOperand<'a>>;

    #[inline(always)]
    fn view_mut(&mut self) -> Option<&mut View<'a>> {
        self.as_mut()
    }

    fn checked(&self, name: &'static str) -> Option<CheckedOperand<'a>> {
        self.as_ref().map(|view| view.checked(name))
    }
}

impl<'a> Field<'a> for Option<ViewMut<'a>> {
    type View = ViewMut<'a>;
    type Checked = Option<CheckedOperand<'a>>;

    #[inline(always)]
    fn view_mut(&mut self) -> Option<&mut ViewMut<'a>> {
        self.as_mut()
    }

    fn checked(&self, name: &'static str) -> Option<CheckedOperand<'a>> {
        self.as_ref().map(|view| view.checked(name))
    }
}

/// A path as text.
macro_rules! field_path {
    ($first:ident $(.$rest:ident)*) => {
        concat!(stringify!($first) $(, ".", stringify!($rest))*)
    };
}

/// The name of a field: `field!(self.of.weight)` is `"of.weight"`.
macro_rules! field {
    ($kernel:ident.$first:ident $(.$rest:ident)*) => {{
        let _ = &$kernel.$first $(.$rest)*;
        $crate::operands::field_path!($first $(.$rest)*)
    }};
}

/// Implements [`Computation::operands`](crate::families::Computation::operands) from a list of accesses and fields:
/// `operands!(Read lhs, Read of.weight, Write out)`. Inputs precede outputs.
macro_rules! operands {
    ($($access:ident $first:ident $(.$rest:ident)*),+ $(,)?) => {
        #[inline(always)]
        fn operands<'k>(
            &'k mut self,
            visit: &mut impl $crate::operands::Visit<'k, 'a>,
        ) -> $crate::error::Result<()> {
            const {
                let names = [$($crate::operands::field_path!($first $(.$rest)*)),+];
                assert!(names.len() <= $crate::operands::MAX_OPERANDS);
            }
            $(
                let name = $crate::operands::field!(self.$first $(.$rest)*);
                let field = &mut self.$first $(.$rest)*;
                if let Some(view) = $crate::operands::Field::view_mut(field) {
                    visit(name, $crate::operands::Operand::$access(view))?;
                }
            )+
            Ok(())
        }
    };
}

/// The operands in fields of a kernel, for its rules: `let (lhs, bias) = checked!(self: lhs, bias)`.
macro_rules! checked {
    ($kernel:ident: $($first:ident $(.$rest:ident)*),+) => {
        ($(
            $crate::operands::Field::checked(
                &$kernel.$first $(.$rest)*,
                $crate::operands::field!($kernel.$first $(.$rest)*),
            )
        ),+)
    };
}

pub(crate) use {checked, field, field_path, operands};
