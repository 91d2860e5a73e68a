//! The attribute macros of dchost-guest. Use them from there.

mod signature;

use proc_macro::{Delimiter, Group, Ident, Punct, Spacing, Span, TokenStream, TokenTree};
use signature::Signature;

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

/// Makes a function an op: what a worker_fn can have run on other tasks of the cluster.
///
/// The function takes its inputs, and before them a `&WorkerContext` if it likes: that of the task on which it runs. It
/// returns its results, or a `Result` of them whose error can be shown. `OpParam` and `OpOutcome` list the types. Every op
/// of a crate stands in one list, `ops![..]`, which exports them.
///
/// The function stays as it is. Beside it comes a type of the same name, with which it is started elsewhere:
/// `start(ctx, task, inputs...)`, or `prepare(ctx, inputs...)` to say more.
///
/// ```
/// use dchost_guest::{MockCluster, Result, WorkerContext, op, ops, worker};
/// use std::time::Duration;
///
/// #[op]
/// fn weighted(ctx: &WorkerContext, values: &[f32], weight: f32) -> Result<f32> {
///     if values.is_empty() {
///         return Err(format!("no values for {}", ctx.task().expect("ops run on a task")).into());
///     }
///     Ok(weight * values.iter().sum::<f32>())
/// }
///
/// ops![weighted];
///
/// fn train(ctx: &WorkerContext) -> Result<f32> {
///     let one = weighted::start(ctx, worker(0), &[1.0, 2.0], 0.5)?;
///     let other = weighted::prepare(ctx, &[3.0], 2.0).timeout(Duration::from_secs(60)).start(worker(1))?;
///     Ok(one.get()? + other.get()?)
/// }
///
/// # fn main() {
/// let cluster = MockCluster::builder().workers(2).ops(OPS).build();
/// assert_eq!(cluster.run(train).unwrap(), [7.5, 7.5]);
/// # }
/// ```
///
/// An op that isn't in the list is an error of the build, as are parameters and results that tensors don't hold:
///
/// ```compile_fail
/// #[dchost_guest::op]
/// fn forgotten(x: f32) -> f32 { x }
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// #[dchost_guest::op]
/// fn greets(name: String) {}
/// dchost_guest::ops![greets];
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// #[dchost_guest::op]
/// fn describes(x: f32) -> String { x.to_string() }
/// dchost_guest::ops![describes];
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// #[dchost_guest::op]
/// fn takes_many_first(all: &[dchost_guest::Tensor], x: f32) {}
/// dchost_guest::ops![takes_many_first];
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// #[dchost_guest::op]
/// fn twice(x: f32) -> f32 { x }
/// dchost_guest::ops![twice, twice];
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// #[dchost_guest::op]
/// fn changes(x: &mut [f32]) {}
/// dchost_guest::ops![changes];
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// #[dchost_guest::op]
/// fn generic<T>(x: f32) {}
/// dchost_guest::ops![generic];
/// # fn main() {}
/// ```
///
/// So is an input of another type, where the op is started:
///
/// ```compile_fail
/// # use dchost_guest::{WorkerContext, op, ops, worker};
/// #[op]
/// fn sum(values: &[f32]) -> f32 { values.iter().sum() }
/// ops![sum];
/// fn train(ctx: &WorkerContext) {
///     let _ = sum::start(ctx, worker(0), &[1_i64, 2]);
/// }
/// # fn main() {}
/// ```
#[proc_macro_attribute]
pub fn op(attribute: TokenStream, item: TokenStream) -> TokenStream {
    if let Some(argument) = attribute.into_iter().next() {
        return compile_error("#[op] takes no arguments", argument.span());
    }
    match signature::parse(item.clone()) {
        Ok(signature) => item.into_iter().chain(make_op(signature)).collect(),
        // The function itself stays, so that this is the only error.
        Err((message, span)) => item.into_iter().chain(compile_error(&message, span)).collect(),
    }
}

/// `::dchost_guest::__op!(vis name with_context [(x by_reference [f32])] [Outcome]);`
fn make_op(signature: Signature) -> TokenStream {
    let Signature { visibility, name, with_context, params, outcome } = signature;
    let bracket = |tokens: TokenStream| TokenTree::from(Group::new(Delimiter::Bracket, tokens));
    let params = params.into_iter().map(|param| {
        let by = if param.by_reference { "by_reference" } else { "by_value" };
        let parts = [TokenTree::from(param.name), ident(by)].into_iter().chain(param.of);
        TokenTree::from(Group::new(Delimiter::Parenthesis, parts.collect()))
    });
    let arguments = [
        name.into(),
        ident(if with_context { "with_context" } else { "without_context" }),
        bracket(params.collect()),
        bracket(outcome),
    ];
    call_macro("__op", visibility.into_iter().chain(arguments).collect())
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
    call_macro("__export_worker_fn", TokenTree::from(name).into())
}

fn ident(text: &str) -> TokenTree {
    Ident::new(text, Span::call_site()).into()
}

/// `::dchost_guest::name!(arguments);`
fn call_macro(name: &str, arguments: TokenStream) -> TokenStream {
    let joint = |char: char| TokenTree::from(Punct::new(char, Spacing::Joint));
    let alone = |char: char| TokenTree::from(Punct::new(char, Spacing::Alone));
    [
        joint(':'),
        alone(':'),
        ident("dchost_guest"),
        joint(':'),
        alone(':'),
        ident(name),
        alone('!'),
        Group::new(Delimiter::Parenthesis, arguments).into(),
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
