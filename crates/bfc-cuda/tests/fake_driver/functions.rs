//! C functions that return a status code.

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 $body
    )*};
}

pub(crate) use functions;
