//! Starts updates and reads, looks whether they are ready while it goes on, and takes their answers in another order.

use dchost_guest::{Change, Result, WorkerContext, worker_fn};

#[worker_fn]
fn train(ctx: &WorkerContext) -> Result<()> {
    let bytes = ctx.variable::<u8>("bytes").shape([3]).declare()?;
    let more = ctx.variable::<u8>("more").declare()?;
    ctx.initialize([Change::assign(&bytes, &[1, 2, 3]), Change::assign(&more, 7)])?;

    let first = ctx.start_update([Change::add(&bytes, 10)])?;
    let second = ctx.start_update([Change::sub(&more, &[1])])?;
    let mut looks = 0_u64;
    while !first.is_ready() || !second.is_ready() {
        looks += 1;
        std::thread::yield_now();
    }
    println!("updates ready, versions {:?} {:?}", second.get()?, first.get()?);

    let given_up = ctx.start_read([&bytes])?;
    let read = ctx.start_read((&bytes, &more))?;
    drop(given_up);
    let (bytes, more) = read.get()?;
    println!("read {:?} and {}", &bytes[..], more.scalar());
    eprintln!("looked {looks} times");
    Ok(())
}
