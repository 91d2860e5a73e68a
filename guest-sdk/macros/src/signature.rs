//! What `#[op]` needs to know of a function. A parser of all of Rust would take longer to build than most components.

use proc_macro::{Delimiter, Group, Ident, Spacing, Span, TokenStream, TokenTree};
use std::iter::Peekable;

/// A message for the author, and where it points.
type Error = (String, Span);

/// The signature of an op's function.
pub(crate) struct Signature {
    pub(crate) visibility: TokenStream,
    pub(crate) name: Ident,
    /// Whether the first parameter is a context, which isn't among `params`.
    pub(crate) with_context: bool,
    pub(crate) params: Vec<Param>,
    pub(crate) outcome: TokenStream,
}

/// One parameter.
pub(crate) struct Param {
    pub(crate) name: Ident,
    pub(crate) by_reference: bool,
    /// Its type, without the `&`.
    pub(crate) of: TokenStream,
}

fn error<T>(message: impl Into<String>, span: Span) -> Result<T, Error> {
    Err((message.into(), span))
}

/// Reads a function's signature, and refuses functions that can't be called with tensors.
pub(crate) fn parse(item: TokenStream) -> Result<Signature, Error> {
    let mut tokens = item.into_iter().peekable();
    skip_attributes(&mut tokens);
    let visibility = visibility(&mut tokens);
    match tokens.next() {
        Some(TokenTree::Ident(word)) if word.to_string() == "fn" => {}
        Some(TokenTree::Ident(word)) if word.to_string() == "async" => {
            return error("an op isn't async: it is called and returns its results", word.span());
        }
        Some(TokenTree::Ident(word)) if ["const", "unsafe", "extern"].contains(&word.to_string().as_str()) => {
            return error("an op is a plain `fn`", word.span());
        }
        token => return error("#[op] stands before a function", span_of(token.as_ref())),
    }
    let Some(TokenTree::Ident(name)) = tokens.next() else {
        return error("#[op] stands before a function", Span::call_site());
    };
    let list = match tokens.next() {
        Some(TokenTree::Group(list)) if list.delimiter() == Delimiter::Parenthesis => list,
        Some(TokenTree::Punct(next)) if next.as_char() == '<' => return error("an op isn't generic", next.span()),
        token => return error("an op has a list of parameters", span_of(token.as_ref())),
    };
    let (with_context, params) = params(&list)?;
    Ok(Signature { visibility, name, with_context, params, outcome: outcome(&mut tokens)? })
}

fn span_of(token: Option<&TokenTree>) -> Span {
    token.map_or_else(Span::call_site, TokenTree::span)
}

type Tokens<I> = Peekable<I>;

fn is_punct(token: Option<&TokenTree>, char: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == char)
}

fn skip_attributes(tokens: &mut Tokens<impl Iterator<Item = TokenTree>>) {
    while is_punct(tokens.peek(), '#') {
        tokens.next();
        tokens.next();
    }
}

fn visibility(tokens: &mut Tokens<impl Iterator<Item = TokenTree>>) -> TokenStream {
    let mut visibility = TokenStream::new();
    if matches!(tokens.peek(), Some(TokenTree::Ident(word)) if word.to_string() == "pub") {
        visibility.extend(tokens.next());
        if matches!(tokens.peek(), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis) {
            visibility.extend(tokens.next());
        }
    }
    visibility
}

/// The type after `->`, or `()`.
fn outcome(tokens: &mut Tokens<impl Iterator<Item = TokenTree>>) -> Result<TokenStream, Error> {
    let unit = || TokenStream::from(TokenTree::from(Group::new(Delimiter::Parenthesis, TokenStream::new())));
    if !is_punct(tokens.peek(), '-') {
        return Ok(unit());
    }
    tokens.next();
    tokens.next();
    let mut outcome = TokenStream::new();
    for token in tokens {
        match &token {
            TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => break,
            TokenTree::Ident(word) if word.to_string() == "where" => {
                return error("an op isn't generic", word.span());
            }
            TokenTree::Ident(word) if word.to_string() == "impl" => {
                return error("an op's result has a type with a name", word.span());
            }
            _ => outcome.extend([token]),
        }
    }
    Ok(outcome)
}

fn params(list: &Group) -> Result<(bool, Vec<Param>), Error> {
    let mut with_context = false;
    let mut params = Vec::new();
    for (index, tokens) in split(list.stream()).into_iter().enumerate() {
        let span = span_of(tokens.first());
        let param = param(index, tokens)?;
        if !is_context(&param) {
            params.push(param);
        } else if index > 0 {
            return error("an op's context comes before its inputs", span);
        } else {
            with_context = true;
        }
    }
    Ok((with_context, params))
}

/// Whether it is `&WorkerContext`, by whatever path.
fn is_context(param: &Param) -> bool {
    let last = param.of.clone().into_iter().last();
    param.by_reference && matches!(last, Some(TokenTree::Ident(word)) if word.to_string() == "WorkerContext")
}

/// Splits at the commas that aren't within `<...>`.
fn split(tokens: TokenStream) -> Vec<Vec<TokenTree>> {
    let mut parts = vec![Vec::new()];
    let (mut depth, mut arrow) = (0_u32, false);
    for token in tokens {
        if let TokenTree::Punct(punct) = &token {
            match punct.as_char() {
                ',' if depth == 0 => {
                    parts.push(Vec::new());
                    continue;
                }
                '<' => depth += 1,
                '>' if !arrow => depth = depth.saturating_sub(1),
                _ => {}
            }
            arrow = punct.as_char() == '-' && punct.spacing() == Spacing::Joint;
        } else {
            arrow = false;
        }
        parts.last_mut().expect("there is one from the start").push(token);
    }
    // After a trailing comma, or of an empty list.
    parts.retain(|part| !part.is_empty());
    parts
}

/// One parameter, `name: Type` or `name: &Type`.
fn param(index: usize, tokens: Vec<TokenTree>) -> Result<Param, Error> {
    let span = span_of(tokens.first());
    let mut tokens = tokens.into_iter().peekable();
    skip_attributes(&mut tokens);
    let mut pattern: Vec<TokenTree> = Vec::new();
    loop {
        match tokens.next() {
            Some(token) if is_punct(Some(&token), ':') => break,
            Some(token) => pattern.push(token),
            None => return error("an op isn't a method: it has no `self`", span),
        }
    }
    let name = match pattern.as_slice() {
        [TokenTree::Ident(name)] if name.to_string() == "_" => Ident::new(&format!("input{index}"), name.span()),
        [TokenTree::Ident(name)] => name.clone(),
        [TokenTree::Ident(word), TokenTree::Ident(name)] if word.to_string() == "mut" => name.clone(),
        _ => return error("an op's input has a plain name, which errors about it show", span),
    };
    if !is_punct(tokens.peek(), '&') {
        return Ok(Param { name, by_reference: false, of: tokens.collect() });
    }
    tokens.next();
    if is_punct(tokens.peek(), '\'') {
        tokens.next();
        tokens.next();
    }
    match tokens.peek() {
        Some(TokenTree::Ident(word)) if word.to_string() == "mut" => {
            error("an op's input is not given back: take it by value to change it", word.span())
        }
        _ => Ok(Param { name, by_reference: true, of: tokens.collect() }),
    }
}
