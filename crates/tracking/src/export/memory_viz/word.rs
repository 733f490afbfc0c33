//! The texts of snapshots, with their numbers.

use bfc_core::Category;

use super::super::encoder::Word;

macro_rules! words {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// The strings are numbered in the order of the list.
        #[allow(non_camel_case_types, reason = "they are the names of the constants")]
        #[allow(clippy::upper_case_acronyms, reason = "they are the names of the constants")]
        #[repr(u32)]
        enum Number { $($name),*, After }

        $(pub(super) const $name: Word = Word { number: Number::$name as u32, text: $text };)*
    };
}

words! {
    SEGMENTS = "segments",
    DEVICE_TRACES = "device_traces",
    ALLOCATOR_SETTINGS = "allocator_settings",
    DEVICE = "device",
    ADDRESS = "address",
    TOTAL_SIZE = "total_size",
    ALLOCATED_SIZE = "allocated_size",
    ACTIVE_SIZE = "active_size",
    REQUESTED_SIZE = "requested_size",
    STREAM = "stream",
    SEGMENT_TYPE = "segment_type",
    LARGE = "large",
    SEGMENT_POOL_ID = "segment_pool_id",
    IS_EXPANDABLE = "is_expandable",
    FRAMES = "frames",
    BLOCKS = "blocks",
    SIZE = "size",
    STATE = "state",
    ACTIVE_ALLOCATED = "active_allocated",
    INACTIVE = "inactive",
    ACTION = "action",
    ALLOC = "alloc",
    FREE_REQUESTED = "free_requested",
    FREE_COMPLETED = "free_completed",
    SEGMENT_ALLOC = "segment_alloc",
    SEGMENT_FREE = "segment_free",
    OOM = "oom",
    ADDR = "addr",
    DEVICE_FREE = "device_free",
    TIME_US = "time_us",
    CATEGORY = "category",
    POOL_ID = "pool_id",
    USER_METADATA = "user_metadata",
    UNKNOWN = "unknown",
    FILENAME = "filename",
    LINE = "line",
    NAME = "name",
    OP = "op",
    MODULE = "module",
    PROGRAM = "program",
    VERSION = "version",
    FACTS = "facts",
    POOLS = "pools",
}

/// The index of the list that names the default pool.
pub(super) const DEFAULT_POOL: u32 = Number::After as u32;

/// The names of categories, by index.
pub(super) const CATEGORIES: [Word; Category::COUNT] = {
    let mut words = [UNKNOWN; Category::COUNT];
    let mut index = 0;
    while index < Category::COUNT {
        let number = DEFAULT_POOL + 1 + index as u32;
        words[index] = Word { number, text: Category::ALL[index].name() };
        index += 1;
    }
    words
};

/// The notes for blocks whose category changed, by the index of the first category.
pub(super) const ALLOCATED_AS: [Word; Category::COUNT] = {
    const TEXTS: [&str; Category::COUNT] = [
        "allocated as temporary",
        "allocated as parameter",
        "allocated as gradient",
        "allocated as optimizer state",
        "allocated as activation",
        "allocated as input",
        "allocated as output",
        "allocated as workspace",
    ];
    let mut words = [UNKNOWN; Category::COUNT];
    let mut index = 0;
    while index < Category::COUNT {
        let number = DEFAULT_POOL + 1 + (Category::COUNT + index) as u32;
        words[index] = Word { number, text: TEXTS[index] };
        index += 1;
    }
    words
};

/// The first index after the words. Stacks are numbered from here.
pub(super) const COUNT: u32 = DEFAULT_POOL + 1 + 2 * Category::COUNT as u32;
