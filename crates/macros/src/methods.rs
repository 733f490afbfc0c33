//! `#[module]`: methods enter the path of their module, and errors get it.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::quote;
use syn::{Error, Result};

pub(crate) fn in_path(item: TokenStream) -> Result<TokenStream> {
    let mut tokens: Vec<TokenTree> = item.into_iter().collect();
    let is_impl = tokens.iter().any(|token| is_ident(token, "impl"));
    let body = match tokens.pop() {
        Some(TokenTree::Group(body)) if is_impl && body.delimiter() == Delimiter::Brace => body,
        _ => {
            let message =
                "`#[module]` belongs above an `impl` block; write `#[derive(Module)]` above a struct";
            return Err(Error::new(Span::call_site(), message));
        }
    };
    // `for<'a>` is a bound.
    let is_trait = tokens.windows(2).any(|pair| is_ident(&pair[0], "for") && !is_punct(&pair[1], '<'));
    let mut methods = methods(body.stream(), is_trait);
    if is_trait {
        methods.extend(quote!(
            fn the_attribute_module_above_this_impl(&self) {}
        ));
    }
    let mut group = Group::new(Delimiter::Brace, methods);
    group.set_span(body.span());
    tokens.push(TokenTree::Group(group));
    Ok(tokens.into_iter().collect())
}

/// Changes the bodies of the methods that enter the path. In the `impl` of the trait, those are the forward methods.
fn methods(items: TokenStream, is_trait: bool) -> TokenStream {
    let mut changed = TokenStream::new();
    let mut item: Vec<TokenTree> = Vec::new();
    // Open angle brackets of a function's signature. Elsewhere, they may be comparisons.
    let mut depth = None;
    for token in items {
        let ends =
            depth.as_ref().is_none_or(Depth::is_outside) && (is_brace(&token) || is_punct(&token, ';'));
        match &mut depth {
            None if item.last().is_some_and(|last| is_ident(last, "fn")) => depth = Some(Depth(0)),
            None => {}
            Some(depth) => depth.pass(&token, item.last()),
        }
        item.push(token);
        if ends {
            let body = body(&item, is_trait);
            if let (Some(body), Some(last)) = (body, item.last_mut()) {
                *last = TokenTree::Group(body);
            }
            changed.extend(item.drain(..));
            depth = None;
        }
    }
    changed.extend(item);
    changed
}

/// Returns the new body of an item, if it is a method that enters the path.
fn body(item: &[TokenTree], is_trait: bool) -> Option<Group> {
    let (TokenTree::Group(body), item) = item.split_last()? else { return None };
    // The type of a function pointer has no name.
    let start = item
        .windows(2)
        .position(|pair| is_ident(&pair[0], "fn") && matches!(pair[1], TokenTree::Ident(_)))?;
    let (before, [_, name, signature @ ..]) = item.split_at(start) else { return None };
    let is_forward = ["forward", "forward_activated"].iter().any(|forward| is_ident(name, forward));
    let cannot_enter = before.iter().any(|token| is_ident(token, "async") || is_ident(token, "const"));
    if cannot_enter || (is_trait && !is_forward) {
        return None;
    }
    let (arguments, after) = arguments(signature)?;
    let receiver = borrowed_self(arguments)?;
    let output = output(after);
    let is_never = matches!(output, [_, _, never] if is_punct(never, '!'));
    if is_never {
        return None;
    }
    let mut output: TokenStream = output.iter().cloned().collect();
    if has_impl(output.clone()) {
        // A closure cannot state the type `impl Trait`. Its body has the type.
        output = TokenStream::new();
    }
    let code = quote! {
        let __scope = ::highwater::macros::enter(&*#receiver);
        let __output = ::highwater::macros::run(|| #output #body);
        {
            #[allow(unused_imports)]
            use ::highwater::macros::{AnyKind as _, ResultKind as _};
            (&::highwater::macros::Kind(&__output)).of().finish(__output)
        }
    };
    let mut group = Group::new(Delimiter::Brace, code);
    group.set_span(body.span());
    Some(group)
}

/// Returns the arguments of a function, and what follows them. Generics may come first.
fn arguments(signature: &[TokenTree]) -> Option<(&Group, &[TokenTree])> {
    let mut depth = Depth(0);
    for (at, token) in signature.iter().enumerate() {
        match token {
            TokenTree::Group(group) if depth.is_outside() && group.delimiter() == Delimiter::Parenthesis => {
                return Some((group, &signature[at + 1..]));
            }
            _ => depth.pass(token, at.checked_sub(1).and_then(|before| signature.get(before))),
        }
    }
    None
}

/// Returns `-> Type`, without a `where` clause.
fn output(after: &[TokenTree]) -> &[TokenTree] {
    let end = after.iter().position(|token| is_ident(token, "where")).unwrap_or(after.len());
    &after[..end]
}

/// Returns the `self` of `&self`, `&mut self` or `self: Type`.
fn borrowed_self(arguments: &Group) -> Option<TokenTree> {
    let mut tokens = arguments.stream().into_iter().peekable();
    let mut is_reference = false;
    while let Some(token) = tokens.next() {
        match &token {
            // Attributes.
            token if is_punct(token, '#') => drop(tokens.next()),
            token if is_punct(token, '&') => is_reference = true,
            // A lifetime.
            token if is_punct(token, '\'') => drop(tokens.next()),
            token if is_ident(token, "mut") => {}
            token if is_ident(token, "self") => {
                let has_type = tokens.peek().is_some_and(|next| is_punct(next, ':'));
                return (is_reference || has_type).then(|| token.clone());
            }
            _ => return None,
        }
    }
    None
}

/// Whether a type is or contains `impl Trait`.
fn has_impl(ty: TokenStream) -> bool {
    ty.into_iter().any(|token| match &token {
        TokenTree::Group(group) => has_impl(group.stream()),
        token => is_ident(token, "impl"),
    })
}

/// The number of open angle brackets.
struct Depth(usize);

impl Depth {
    fn is_outside(&self) -> bool {
        self.0 == 0
    }

    /// Counts a token. The angle bracket of `->` opens and closes nothing.
    fn pass(&mut self, token: &TokenTree, before: Option<&TokenTree>) {
        if is_punct(token, '<') {
            self.0 += 1;
        } else if is_punct(token, '>') && !before.is_some_and(|before| is_punct(before, '-')) {
            self.0 = self.0.saturating_sub(1);
        }
    }
}

fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if *ident == name)
}

fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

fn is_brace(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}
