//! Kernel sources, compiled at run time for each element type.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ptr;

use super::ElementType;

/// CUDA C++ with several kernels. A program has one `static` value per source: values are equal if they are the same.
///
/// ```
/// use bfc_cuda::kernels::{ElementType, KernelId, KernelSource};
/// static SOURCE: KernelSource = KernelSource::new("zero", "", "KERNEL(zero) { *(T*)job.out[0].address = 0; }");
/// assert_eq!(SOURCE.kernels().collect::<Vec<_>>(), ["zero"]);
/// assert_eq!(KernelId::new(&SOURCE, "zero", ElementType::F32).to_string(), "zero_f32");
/// ```
pub struct KernelSource {
    name: &'static str,
    headers: &'static str,
    text: &'static str,
}

impl KernelSource {
    /// The headers of all sources: the argument of kernels, and 16-bit floats.
    pub const PRELUDE: &'static str =
        concat!(include_str!("../../kernels/job.cuh"), include_str!("../../kernels/half.cuh"));

    /// Describes a source with its name, further headers, and the kernels, each defined as `KERNEL(name)` at the start of a
    /// line. `kernels/job.cuh` in this crate explains the macros.
    #[must_use]
    pub const fn new(name: &'static str, headers: &'static str, text: &'static str) -> Self {
        Self { name, headers, text }
    }

    /// The name of the source file, without extension.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The headers besides [`PRELUDE`](Self::PRELUDE).
    #[must_use]
    pub const fn headers(&self) -> &'static str {
        self.headers
    }

    /// The kernels, which need the headers.
    #[must_use]
    pub const fn text(&self) -> &'static str {
        self.text
    }

    /// The names of the kernels, without suffix: those that the source defines. It may define a kernel in several ways, of
    /// which the device's architecture selects one.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> + use<> {
        let defined = self.text.lines().filter_map(|line| {
            let kind = ["BLOCK_", "TABLE_"].into_iter().find_map(|kind| line.strip_prefix(kind));
            kind.unwrap_or(line).strip_prefix("KERNEL(")?.split([')', ',']).next()
        });
        let names: BTreeSet<_> = defined.collect();
        names.into_iter()
    }

    /// The source for one element type, as passed to a device compiler.
    #[must_use]
    pub fn translation_unit(&self, element: ElementType) -> String {
        let mut text = String::new();
        for (name, value) in element.defines() {
            // `T` may be a type of the prelude: macros expand where they are used.
            text.push_str(&format!("#define {name} {value}\n"));
        }
        text.push_str(Self::PRELUDE);
        text.push_str(self.headers);
        text.push_str(self.text);
        text
    }
}

impl PartialEq for KernelSource {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }
}

impl Eq for KernelSource {}

impl Hash for KernelSource {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ptr::from_ref(self).hash(state);
    }
}

impl fmt::Debug for KernelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KernelSource").field(&self.name).finish()
    }
}

/// A kernel for one element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelId {
    /// The source.
    pub source: &'static KernelSource,
    /// The name without suffix.
    pub name: &'static str,
    /// The element type.
    pub element: ElementType,
}

impl KernelId {
    /// Names a kernel.
    #[must_use]
    pub const fn new(source: &'static KernelSource, name: &'static str, element: ElementType) -> Self {
        Self { source, name, element }
    }
}

/// The name in compiled code.
impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.name, self.element.suffix())
    }
}
