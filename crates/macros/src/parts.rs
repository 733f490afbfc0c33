//! `#[derive(Module)]`: visits the fields in order, each with its name.

use std::collections::HashSet;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Fields, LitStr, Result, Type};

/// A field and its options.
struct Part<'a> {
    name: String,
    ty: &'a Type,
    is_buffer: bool,
}

pub(crate) fn list(item: &DeriveInput) -> Result<TokenStream> {
    let (mut visits, mut types) = (TokenStream::new(), Vec::new());
    match &item.data {
        Data::Struct(data) => {
            let arm = arm(quote!(Self), &data.fields, &mut types)?;
            visits.extend(arm);
        }
        Data::Enum(data) => {
            for variant in &data.variants {
                let name = &variant.ident;
                visits.extend(arm(quote!(Self::#name), &variant.fields, &mut types)?);
            }
        }
        Data::Union(data) => {
            return Err(Error::new(data.union_token.span(), "a module is a struct or an enum"));
        }
    }
    let (name, (impl_generics, type_generics, clause)) = (&item.ident, item.generics.split_for_impl());
    let bounds = clause.map(|clause| clause.predicates.iter()).into_iter().flatten();
    let parameters: HashSet<String> =
        item.generics.type_params().map(|parameter| parameter.ident.to_string()).collect();
    let generic = types.iter().filter(|ty| mentions(ty.to_token_stream(), &parameters));
    let check = item.generics.params.is_empty().then(|| check(name, &types));
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics ::highwater::macros::Parts for #name #type_generics
        where #(#bounds,)* #(#generic: ::highwater::macros::ModulePart,)*
        {
            #[inline]
            fn visit_parts(&self, visitor: &mut ::highwater::macros::PartVisitor<'_>) {
                let _ = &visitor;
                match self { #visits }
            }
        }
        #check
    })
}

/// Visits the fields of a struct or of a variant.
fn arm<'a>(path: TokenStream, fields: &'a Fields, types: &mut Vec<&'a Type>) -> Result<TokenStream> {
    let (mut patterns, mut visits) = (TokenStream::new(), TokenStream::new());
    for (index, field) in fields.iter().enumerate() {
        let own = field.ident.as_ref().map_or_else(|| index.to_string(), unraw);
        let Some(part) = options(&field.attrs, own, &field.ty)? else { continue };
        // The compiler points at the type of a field that is no part.
        let span = Span::call_site().located_at(part.ty.span());
        let variable = format_ident!("part{index}", span = span);
        let member = match &field.ident {
            Some(name) => name.to_token_stream(),
            None => syn::Index::from(index).to_token_stream(),
        };
        patterns.extend(quote!(#member: #variable,));
        let (name, visit) = (part.name, format_ident!("{}", if part.is_buffer { "buffer" } else { "part" }));
        visits.extend(quote_spanned!(span=> visitor.#visit(#name, #variable);));
        types.push(part.ty);
    }
    Ok(quote!(#path { #patterns .. } => { #visits }))
}

/// Reads `#[module(buffer)]`, `#[module(skip)]` and `#[module(rename = "…")]`. Returns `None` for a skipped field.
fn options<'a>(attributes: &[Attribute], name: String, ty: &'a Type) -> Result<Option<Part<'a>>> {
    let mut part = Part { name, ty, is_buffer: false };
    let mut is_skipped = false;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("module")) {
        attribute.parse_nested_meta(|option| {
            if option.path.is_ident("buffer") {
                part.is_buffer = true;
            } else if option.path.is_ident("skip") {
                is_skipped = true;
            } else if option.path.is_ident("rename") {
                part.name = option.value()?.parse::<LitStr>()?.value();
            } else {
                return Err(option.error("expected `buffer`, `skip` or `rename = \"…\"`"));
            }
            Ok(())
        })?;
    }
    Ok((!is_skipped).then_some(part))
}

/// Fails to compile if no field can know a path.
fn check(name: &Ident, types: &[&Type]) -> TokenStream {
    let message = format!(
        "no field of `{name}` knows its path in the model: add the field `path: ModulePath` (`highwater::nn::ModulePath`)"
    );
    quote! {
        const _: () = assert!(false #(|| <#types as ::highwater::macros::ModulePart>::HAS_PATH)*, #message);
    }
}

/// The name of a field, without the `r#` of a keyword.
fn unraw(name: &Ident) -> String {
    let name = name.to_string();
    name.strip_prefix("r#").unwrap_or(&name).to_owned()
}

/// Whether a type mentions one of these type parameters.
fn mentions(ty: TokenStream, parameters: &HashSet<String>) -> bool {
    ty.into_iter().any(|token| match token {
        TokenTree::Ident(name) => parameters.contains(&name.to_string()),
        TokenTree::Group(group) => mentions(group.stream(), parameters),
        _ => false,
    })
}
