//! The two macros of modules. `highwater::nn::Module` documents them.
//!
//! The derive reads a struct or enum with `syn`. The attribute scans the tokens of an `impl` block by hand, so that `syn`
//! needs no features beyond those that serde and thiserror enable.

mod methods;
mod parts;

use proc_macro::TokenStream;

/// Lists the fields of a struct or enum as the parts of a module.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(item: TokenStream) -> TokenStream {
    let parts = syn::parse(item).and_then(|item| parts::list(&item));
    parts.unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Lets the methods of an `impl` block run in the path of their module.
#[proc_macro_attribute]
pub fn module(arguments: TokenStream, item: TokenStream) -> TokenStream {
    if let Some(argument) = proc_macro2::TokenStream::from(arguments).into_iter().next() {
        let error = syn::Error::new(argument.span(), "`#[module]` has no arguments");
        return error.into_compile_error().into();
    }
    methods::in_path(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
