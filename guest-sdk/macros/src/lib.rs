//! The attribute macros of dchost-guest. Use them from there.

use proc_macro::{Delimiter, Group, Ident, Punct, Spacing, Span, TokenStream, TokenTree};

/// Makes a function the component's `worker_fn`: what every run of the job executes.
///
/// The function takes `&WorkerContext` and returns nothing or a `Result` whose error can be shown (`Display`). An error
/// ends the run with exit code 1 and its text. One function of a crate carries the attribute. Natively it stays an
/// ordinary function, for tests on a `MockCluster`.
///
/// ```
/// use dchost_guest::{Result, WorkerContext, worker_fn};
///
/// #[worker_fn]
/// fn train(ctx: &WorkerContext) -> Result<()> {
///     ctx.wait_for_other_workers()
/// }
/// # fn main() {}
/// ```
///
/// What can't be called with a context alone is refused:
///
/// ```compile_fail
/// #[dchost_guest::worker_fn]
/// async fn train(ctx: &dchost_guest::WorkerContext) {}
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// #[dchost_guest::worker_fn]
/// fn train(ctx: &dchost_guest::WorkerContext, steps: u32) {}
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// #[dchost_guest::worker_fn]
/// fn train(ctx: &dchost_guest::WorkerContext) -> u32 { 7 }
/// # fn main() {}
/// ```
#[proc_macro_attribute]
pub fn worker_fn(attribute: TokenStream, item: TokenStream) -> TokenStream {
    if let Some(argument) = attribute.into_iter().next() {
        return compile_error("#[worker_fn] takes no arguments", argument.span());
    }
    match function_name(item.clone()) {
        Ok(name) => item.into_iter().chain(export_call(name)).collect(),
        Err((message, span)) => compile_error(message, span),
    }
}

/// Finds the name after `fn`, and refuses functions that can't be called with a context alone.
fn function_name(item: TokenStream) -> Result<Ident, (&'static str, Span)> {
    let mut tokens = item.into_iter();
    while let Some(token) = tokens.next() {
        let TokenTree::Ident(word) = &token else { continue };
        match word.to_string().as_str() {
            "async" => return Err(("a worker_fn isn't async: calls block until they are done", word.span())),
            "struct" | "enum" | "mod" | "impl" | "trait" | "use" | "static" | "type" => {
                return Err(("#[worker_fn] stands before a function", word.span()));
            }
            "fn" => {
                let Some(TokenTree::Ident(name)) = tokens.next() else { break };
                if let Some(TokenTree::Punct(next)) = tokens.next()
                    && next.as_char() == '<'
                {
                    return Err(("a worker_fn isn't generic", next.span()));
                }
                return Ok(name);
            }
            _ => {}
        }
    }
    Err(("#[worker_fn] stands before a function", Span::call_site()))
}

/// `::dchost_guest::__export_worker_fn!(name);`
fn export_call(name: Ident) -> TokenStream {
    let ident = |text: &str| TokenTree::from(Ident::new(text, Span::call_site()));
    let joint = |char: char| TokenTree::from(Punct::new(char, Spacing::Joint));
    let alone = |char: char| TokenTree::from(Punct::new(char, Spacing::Alone));
    [
        joint(':'),
        alone(':'),
        ident("dchost_guest"),
        joint(':'),
        alone(':'),
        ident("__export_worker_fn"),
        alone('!'),
        Group::new(Delimiter::Parenthesis, TokenTree::from(name).into()).into(),
        alone(';'),
    ]
    .into_iter()
    .collect()
}

fn compile_error(message: &str, span: Span) -> TokenStream {
    let mut text: TokenTree = proc_macro::Literal::string(message).into();
    text.set_span(span);
    let mut call = [
        TokenTree::from(Ident::new("compile_error", span)),
        Punct::new('!', Spacing::Alone).into(),
        Group::new(Delimiter::Parenthesis, text.into()).into(),
        Punct::new(';', Spacing::Alone).into(),
    ];
    for token in &mut call {
        token.set_span(span);
    }
    call.into_iter().collect()
}
